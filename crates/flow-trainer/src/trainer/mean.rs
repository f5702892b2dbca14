//! Means of what losses log.

/// A running mean, accumulated in f64 in the order of the loss terms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Of one value.
    pub(super) fn of(value: f64) -> Self {
        Self { sum: value, count: 1 }
    }

    pub(super) fn add(&mut self, values: impl Iterator<Item = f32>) {
        for value in values {
            self.sum += f64::from(value);
            self.count += 1;
        }
    }

    pub(super) fn value(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum / self.count as f64
        }
    }
}
