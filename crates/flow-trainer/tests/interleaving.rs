//! Rollouts with an accelerator that holds state, evaluations, losses and panics in turns: nothing stale is seen, nothing
//! stays behind, and memory does not grow.

#[path = "training/support.rs"]
#[allow(dead_code)]
mod support;

use flow_accel::{
    Accelerator, AcceleratorRegistry, AcceleratorStage, Engagement, Meter, Refusal, Safety, StepScope, Target,
};
use flow_core::exec::Stack;
use flow_core::{Backends, Exec, RawTensor, StackDriver, Stage, TrajectoryId};
use flow_report::{Manifest, OnExists, RunDirectory};
use flow_trainer::Trainer;
use flow_trainer::algorithm::Algorithm;
use flow_trainer::observer::{IterationSummary, Observer, Phase, Silent};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use support::{Visit, bits, config, environment, registries, with_trainer};

/// Counts the bytes that are allocated and not yet freed, by the whole process.
struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// The most that were alive at once since this was last set.
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as i64;
        let live = LIVE_BYTES.fetch_add(size, Ordering::Relaxed) + size;
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
        // SAFETY: as promised to this function.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as promised to this function.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file run one after another: they count what the whole process allocates.
static ALONE: Mutex<()> = Mutex::new(());

/// What the accelerator sees, and what it holds.
#[derive(Debug, Default)]
struct Ledger {
    /// States that exist.
    held: AtomicI64,
    /// Bytes that they hold.
    held_bytes: AtomicI64,
    /// Most bytes held since this was last taken.
    peak_bytes: AtomicI64,
    /// Steps that found the state of the step before.
    found: AtomicUsize,
    /// What must not happen.
    faults: Mutex<Vec<String>>,
    /// Whether the next step that finds a state panics.
    panics: AtomicBool,
}

impl Ledger {
    fn fault(&self, text: String) {
        self.faults.lock().expect("not poisoned").push(text);
    }
}

/// Beside each state, so that it weighs something.
const BALLAST: usize = 1 << 16;

/// The state of one trajectory in one rollout.
#[derive(Debug)]
struct State {
    iteration: u64,
    step: u32,
    _carried: Vec<RawTensor>,
    _ballast: Vec<u8>,
    ledger: Arc<Ledger>,
}

impl State {
    fn new(iteration: u64, step: u32, carried: &[RawTensor], ledger: &Arc<Ledger>) -> Self {
        ledger.held.fetch_add(1, Ordering::SeqCst);
        let bytes = ledger.held_bytes.fetch_add(BALLAST as i64, Ordering::SeqCst) + BALLAST as i64;
        ledger.peak_bytes.fetch_max(bytes, Ordering::SeqCst);
        Self {
            iteration,
            step,
            _carried: carried.to_vec(),
            _ballast: vec![1; BALLAST],
            ledger: ledger.clone(),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.ledger.held.fetch_sub(1, Ordering::SeqCst);
        self.ledger.held_bytes.fetch_sub(BALLAST as i64, Ordering::SeqCst);
    }
}

/// Keeps a state for every trajectory from step to step, and computes every block.
#[derive(Debug)]
struct Holding {
    ledger: Arc<Ledger>,
    meter: Meter,
    states: Mutex<BTreeMap<TrajectoryId, State>>,
}

impl StackDriver for Holding {
    fn name(&self) -> &str {
        "holding"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<RawTensor>,
        shared: Vec<RawTensor>,
    ) -> Vec<RawTensor> {
        let call = exec.call();
        let ledger = &self.ledger;
        if call.stage != Stage::Rollout {
            ledger.fault(format!("asked in {:?}", call.stage));
        }
        let mut panics = false;
        {
            let mut states = self.states.lock().expect("not poisoned");
            for trajectory in call.trajectories.iter() {
                let new = State::new(call.iteration, call.step, &carried, ledger);
                let old = states.insert(*trajectory, new);
                match (&old, call.step) {
                    (None, 0) => {}
                    (Some(old), step) if old.iteration == call.iteration && old.step + 1 == step => {
                        ledger.found.fetch_add(1, Ordering::SeqCst);
                        panics |= ledger.panics.swap(false, Ordering::SeqCst);
                    }
                    (old, step) => ledger.fault(format!(
                        "step {step} of iteration {} found {:?}",
                        call.iteration,
                        old.as_ref().map(|old| (old.iteration, old.step))
                    )),
                }
            }
        }
        assert!(!panics, "in the middle of a rollout");
        self.meter.count(Engagement::CallAnswered, 1);
        stack.run_blocks(exec, 0..stack.len(), carried, &shared)
    }
}

#[derive(Debug)]
struct HoldingAccelerator(Arc<Ledger>);

impl Accelerator for HoldingAccelerator {
    fn name(&self) -> &str {
        "holding"
    }
    fn stage(&self) -> AcceleratorStage {
        AcceleratorStage::Rollout
    }
    fn safety(&self, _: &Backends) -> Safety {
        Safety::Lossy(StepScope::OutsideSdeWindow)
    }
    fn apply(&self, plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        Ok(Backends {
            stacks: Arc::new(Holding {
                ledger: self.0.clone(),
                meter: target.meter.clone(),
                states: Mutex::default(),
            }),
            ..plan
        })
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoParams {}

fn with_holding(registry: &mut AcceleratorRegistry, ledger: &Arc<Ledger>) {
    let ledger = ledger.clone();
    registry
        .register(
            "holding",
            AcceleratorStage::Rollout,
            "Holds.",
            move |_: NoParams| Ok(HoldingAccelerator(ledger.clone())),
        )
        .expect("a free name");
}

const ITERATIONS: u64 = 8;
/// 12 samples, each with and without its condition.
const LANES: i64 = 24;

fn interleaved(accelerated: bool) -> flow_config::Config {
    let entry = "acceleration.rollout={ name = \"holding\" }";
    let steps = format!("run.steps={ITERATIONS}");
    let mut overrides = vec![
        "evaluation.every=1",
        "sampling.guidance_scale=2.0",
        "checkpoints.every=0",
        &steps,
    ];
    overrides.extend(accelerated.then_some(entry));
    config(&overrides)
}

/// What was held at each phase, and the live bytes after each iteration.
struct Watch {
    ledger: Arc<Ledger>,
    phases: Vec<(Phase, i64)>,
    peaks: Vec<i64>,
    live_bytes: Vec<i64>,
}

impl Watch {
    fn new(ledger: &Arc<Ledger>) -> Self {
        Self {
            ledger: ledger.clone(),
            phases: Vec::new(),
            peaks: Vec::with_capacity(ITERATIONS as usize),
            live_bytes: Vec::with_capacity(ITERATIONS as usize),
        }
    }
}

impl Observer for Watch {
    fn phase(&mut self, phase: Phase, _: usize) {
        self.phases.push((phase, self.ledger.held.load(Ordering::SeqCst)));
    }
    fn iteration(&mut self, _: &IterationSummary) {
        self.peaks.push(self.ledger.peak_bytes.swap(0, Ordering::SeqCst));
        self.live_bytes.push(LIVE_BYTES.load(Ordering::SeqCst));
    }
}

/// Trains to the end; `before` gets the run first.
struct Run<'a, F> {
    root: &'a Path,
    observer: &'a mut dyn Observer,
    before: F,
}

impl<F: FnOnce(&mut dyn FnMut())> Visit for Run<'_, F> {
    type Output = Vec<Vec<u32>>;

    fn visit<A: Algorithm + 'static>(self, trainer: Trainer<A>) -> Self::Output {
        let directory = RunDirectory::open(self.root, "run", OnExists::Error).expect("a folder");
        let manifest = Manifest::new("run", vec![], serde_json::Value::Null, self.root);
        let mut trainer = trainer.start(directory, &manifest).expect("it starts");
        (self.before)(&mut || {
            trainer.train(&mut Silent).expect("it runs");
        });
        trainer.train(self.observer).expect("it runs");
        bits(&trainer.state.weights.current)
    }
}

/// The weights at the end of a run on one thread.
fn run(
    accelerated: Option<&Arc<Ledger>>,
    observer: &mut (dyn Observer + Send),
    before: impl FnOnce(&mut dyn FnMut()) + Send,
) -> Vec<Vec<u32>> {
    let root = tempfile::tempdir().expect("a folder");
    let mut registries = registries();
    if let Some(ledger) = accelerated {
        with_holding(&mut registries.accelerators, ledger);
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .expect("a pool");
    pool.install(|| {
        with_trainer(
            &interleaved(accelerated.is_some()),
            &environment(&registries),
            Run {
                root: root.path(),
                observer,
                before,
            },
        )
    })
}

/// Bytes that the last evaluation of a run had allocated beyond those at its beginning.
#[derive(Default)]
struct EvaluationMemory {
    is_within: bool,
    before: i64,
    /// At the most, up to the last step.
    peak: i64,
    /// After each step of its one micro-batch.
    after_steps: Vec<i64>,
}

impl Observer for EvaluationMemory {
    fn phase(&mut self, phase: Phase, units: usize) {
        self.is_within = phase == Phase::Evaluation;
        if self.is_within {
            self.after_steps = Vec::with_capacity(units);
            self.before = LIVE_BYTES.load(Ordering::SeqCst);
            PEAK_BYTES.store(self.before, Ordering::SeqCst);
        }
    }
    fn advance(&mut self, _: usize) {
        if self.is_within {
            self.after_steps
                .push(LIVE_BYTES.load(Ordering::SeqCst) - self.before);
            self.peak = PEAK_BYTES.load(Ordering::SeqCst) - self.before;
        }
    }
}

/// Memory of the evaluation after an update, with this number of steps.
fn evaluation_memory(steps: usize) -> EvaluationMemory {
    fn at_once(_: &mut dyn FnMut()) {}
    let root = tempfile::tempdir().expect("a folder");
    let registries = registries();
    let steps = format!("evaluation.steps={steps}");
    let overrides = [
        "run.steps=1",
        "evaluation.every=1",
        "sampling.guidance_scale=2.0",
        "checkpoints.every=0",
        &steps,
    ];
    let mut memory = EvaluationMemory::default();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .expect("a pool");
    pool.install(|| {
        with_trainer(
            &config(&overrides),
            &environment(&registries),
            Run {
                root: root.path(),
                observer: &mut memory,
                before: at_once,
            },
        )
    });
    memory
}

fn assert_clean(ledger: &Ledger) {
    assert_eq!(*ledger.faults.lock().expect("not poisoned"), Vec::<String>::new());
    assert_eq!(ledger.held.load(Ordering::SeqCst), 0);
}

#[test]
fn rollouts_and_evaluations_in_turns_see_nothing_stale_and_leave_nothing() {
    let _alone = ALONE.lock();
    let ledger = Arc::new(Ledger::default());
    let mut watch = Watch::new(&ledger);
    let weights = run(Some(&ledger), &mut watch, |_| {});
    assert_clean(&ledger);
    // Three of four steps have one before them.
    let expected = ITERATIONS as usize * LANES as usize * 3;
    assert_eq!(ledger.found.load(Ordering::SeqCst), expected);

    let count = |phase| watch.phases.iter().filter(|(seen, _)| *seen == phase).count() as u64;
    assert_eq!(count(Phase::Rollout), ITERATIONS);
    assert_eq!(count(Phase::Evaluation), ITERATIONS + 1);
    for (phase, held) in &watch.phases {
        assert_eq!(*held, 0, "{phase:?}");
    }
    // One more than there are trajectories: the new state is made before the old one goes.
    let peak = (LANES + 1) * BALLAST as i64;
    assert_eq!(watch.peaks, vec![peak; ITERATIONS as usize]);
    // The first iterations fill buffers and tables. Half a state is less than the smallest thing that could be left.
    let settled = &watch.live_bytes[3..];
    for bytes in settled {
        let growth = bytes - settled[0];
        assert!(growth < BALLAST as i64 / 2, "{:?}", watch.live_bytes);
    }

    assert_eq!(
        weights,
        run(None, &mut Silent, |_| {}),
        "an accelerator that computes everything"
    );
}

#[test]
fn a_panic_within_a_rollout_leaves_the_trainer_as_it_was_before_it() {
    let _alone = ALONE.lock();
    let ledger = Arc::new(Ledger::default());
    let weights = run(Some(&ledger), &mut Silent, |run| {
        ledger.panics.store(true, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(run));
        assert!(panicked.is_err());
        assert_clean(&ledger);
    });
    assert_clean(&ledger);
    assert_eq!(
        weights,
        run(None, &mut Silent, |_| {}),
        "it goes on from where it was"
    );
}

#[test]
fn memory_of_an_evaluation_does_not_depend_on_its_number_of_steps() {
    let _alone = ALONE.lock();
    let (few, many) = (4, 29);
    let memory = [few, many].map(evaluation_memory);
    // 4 images of 8 by 8 in f32: the least that a step which is not forgotten would leave.
    let latents = 4 * 64 * 4;
    let allowed = (many - few) as i64 * latents / 2;
    for (steps, found) in [few, many].into_iter().zip(&memory) {
        assert_eq!(found.after_steps.len(), steps);
        assert!(found.peak >= latents, "{}", found.peak);
        // The first steps fill what is kept for all.
        let settled = &found.after_steps[2..];
        let growth = settled.iter().max().expect("steps") - settled[0];
        assert!(growth < allowed, "{:?}", found.after_steps);
    }
    let [few, many] = memory.map(|found| found.peak);
    assert!(many - few < allowed, "{few} bytes at the most, then {many}");
}
