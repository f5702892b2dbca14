//! Measures work, or says which kernels one run of it has.

use crate::kernel_trace::KernelTrace;
use crate::timing::measure;
use serde_json::{Value, json};
use std::error::Error;

/// For one kind of work.
pub struct Meter {
    trace: Option<KernelTrace>,
    repeats: usize,
    kernels: Result<Vec<Value>, Box<dyn Error>>,
}

impl Meter {
    /// Before the first call of the device, which a trace must see.
    ///
    /// # Errors
    /// A trace is asked for, and there is no CUPTI.
    pub fn new(repeats: usize, traced: bool) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            trace: traced.then(KernelTrace::start).transpose()?,
            repeats,
            kernels: Ok(Vec::new()),
        })
    }

    /// Milliseconds of each run; none if one is traced.
    pub fn measure(&mut self, mut work: impl FnMut()) -> Vec<f64> {
        let Some(trace) = &self.trace else {
            return measure(self.repeats, 1, work);
        };
        // Before the last, kernels are compiled and calls are recorded.
        let none = measure(0, 1, &mut work);
        self.kernels = trace.take().map(drop).and_then(|()| {
            work();
            trace.take()
        });
        none
    }

    /// What was traced, as a line beside `about`: launches, their milliseconds together, and the kernels.
    ///
    /// # Errors
    /// CUPTI refused.
    pub fn row(self, mut about: Value) -> Result<Value, Box<dyn Error>> {
        let kernels = self.kernels?;
        let sum = |key: &str| {
            let found = kernels.iter().filter_map(|kernel| kernel[key].as_f64());
            found.sum::<f64>()
        };
        about["launches"] = json!(sum("calls") as u64);
        about["kernels_ms"] = json!(sum("us") / 1e3);
        about["kernels"] = json!(kernels);
        Ok(about)
    }
}
