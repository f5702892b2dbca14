//! A device is made to record only if it has the memory, and records nothing after a step that was declined.

use flow_core::device::capture::{CaptureDevice, record};
use flow_core::{RawTensor, Refusal, cpu, stopped};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const GIB: u64 = 1 << 30;

type Log = Rc<RefCell<Vec<&'static str>>>;

/// A device of numbers, which notes what it is asked for and declines one step.
#[derive(Default)]
struct Paper {
    log: Log,
    reserved: Cell<u64>,
    free: Option<u64>,
    /// The step that is declined, and at which time that it is asked for.
    declines: Option<(&'static str, usize)>,
}

impl Paper {
    fn with_free(free: Option<u64>) -> Self {
        let reserved = Cell::new(7 * GIB);
        Self {
            free,
            reserved,
            ..Self::default()
        }
    }

    fn step(&self, step: &'static str) -> Result<(), Refusal> {
        self.log.borrow_mut().push(step);
        let asked = self.log.borrow().iter().filter(|each| **each == step).count();
        match self.declines == Some((step, asked)) {
            true => Err(Refusal::because(format!("the device refused to {step}"))),
            false => Ok(()),
        }
    }

    /// Records with a warm-up that takes 3 GiB.
    fn record(&self) -> Result<(u32, Vec<RawTensor>), Refusal> {
        let warm_up = &mut || {
            self.log.borrow_mut().push("warm-up");
            self.reserved.set(10 * GIB);
            vec![cpu::from_vec(vec![1.0, 2.0, 3.0], &[3])]
        };
        record(self, warm_up, &mut || {
            self.log.borrow_mut().push("compute");
            vec![cpu::from_vec(vec![5.0], &[1])]
        })
    }

    fn count(&self, step: &str) -> usize {
        self.log.borrow().iter().filter(|each| **each == step).count()
    }
}

struct SetAside(Log);

impl Drop for SetAside {
    fn drop(&mut self) {
        self.0.borrow_mut().push("give back");
    }
}

impl CaptureDevice for Paper {
    type Graph = u32;
    type SetAside = SetAside;

    fn bytes_reserved(&self) -> u64 {
        self.reserved.get()
    }

    fn bytes_free(&self) -> Option<u64> {
        self.free
    }

    fn bytes_to_set_aside(&self) -> u64 {
        2 * GIB
    }

    fn set_aside(&self) -> Result<SetAside, Refusal> {
        self.step("set aside").map(|()| SetAside(self.log.clone()))
    }

    fn prepare(&self) -> Result<(), Refusal> {
        self.step("prepare")
    }

    fn finish(&self, outputs: &[RawTensor]) -> Result<(), Refusal> {
        assert_eq!(cpu::to_host(&outputs[0]), [1.0, 2.0, 3.0], "those of the warm-up");
        self.step("finish")
    }

    fn start(&self) -> Result<(), Refusal> {
        self.step("start")
    }

    fn stop(&self) -> Result<u32, Refusal> {
        self.step("stop").map(|()| 11)
    }
}

#[test]
fn a_recording_that_needs_more_memory_than_is_free_is_declined_before_it_starts_and_the_reason_has_both() {
    let device = Paper::with_free(Some(GIB + GIB / 2));
    let refusal = device.record().expect_err("half a GiB is missing");
    // The warm-up's 3 GiB and the 2 that are set aside; the first will be given back, and count as free.
    assert_eq!(refusal.why, "a recording needs 5.00 GiB, 4.50 GiB are free");
    assert_eq!(*device.log.borrow(), ["prepare", "warm-up", "finish", "stop"]);
}

#[test]
fn a_device_that_has_the_memory_or_does_not_say_records() {
    for free in [Some(2 * GIB), None] {
        let device = Paper::with_free(free);
        let (graph, outputs) = device.record().expect("there is room");
        assert_eq!((graph, cpu::to_host(&outputs[0])), (11, vec![5.0]));
        let order = [
            "prepare",
            "warm-up",
            "finish",
            "set aside",
            "warm-up",
            "finish",
            "give back",
            "start",
            "compute",
            "stop",
        ];
        assert_eq!(*device.log.borrow(), order, "{free:?}");
    }
}

#[test]
fn a_device_that_declines_a_step_is_stopped_once_and_its_reason_is_told() {
    for (step, time, stops) in [
        // Nothing has begun, and what is under way belongs to somebody else.
        ("prepare", 1, 0),
        ("finish", 1, 1),
        ("set aside", 1, 1),
        ("finish", 2, 1),
        ("start", 1, 1),
        ("stop", 1, 1),
    ] {
        let device = Paper {
            declines: Some((step, time)),
            ..Paper::with_free(Some(40 * GIB))
        };
        let refusal = device.record().expect_err(step);
        assert_eq!(refusal.why, format!("the device refused to {step}"));
        assert_eq!(device.count("stop"), stops, "{step} {time}");
        assert_eq!(
            device.count("compute"),
            usize::from(step == "stop"),
            "{step} {time}"
        );
        assert_eq!(
            device.count("give back"),
            usize::from(time == 2 || ["start", "stop"].contains(&step)),
            "{step} {time}"
        );
    }
}

#[test]
fn a_device_records_nothing_after_a_panic_of_what_it_records() {
    let device = Paper::with_free(None);
    let panicked = stopped::caught(|| {
        record(
            &device,
            &mut || vec![cpu::from_vec(vec![1.0, 2.0, 3.0], &[3])],
            &mut || panic!("it fell off the bus"),
        )
        .map(|(graph, _)| graph)
    });
    let why = panicked.expect_err("it panicked").to_string();
    assert!(why.contains("fell off the bus"), "{why}");
    assert_eq!(device.count("stop"), 1);
}
