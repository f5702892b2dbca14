//! The registry, the slots and the plans that come out of them.

#[path = "acceleration/kinds.rs"]
mod kinds;

use flow_accel::{
    Acceleration, Accelerator, AcceleratorRegistry, AcceleratorStage, Applied, Arrangement, Engagement,
    Engagements, Meter, NameTaken, Paradigm, Params, Refusal, Safety, Shortfall, Slot, StepScope, Target,
};
use flow_attention::CpuAttention;
use flow_core::device::ComputeDevice;
use flow_core::exec::{Body, Stack};
use flow_core::params::LayoutBuilder;
use flow_core::{
    Backends, CallContext, Exec, Init, ModelSpec, ParamLayout, RegionEngine, StackDriver, Stage, Weights,
};
use flow_kernels::CpuKernels;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::{Arc, Mutex};

/// What crosses the edge of a region or stack.
type Erased = Vec<flow_core::RawTensor>;

/// Puts its name before that of what it wraps; computes nothing.
#[derive(Debug)]
struct Wrapped<T: ?Sized> {
    name: String,
    inner: Arc<T>,
    state: State,
}

/// Says when it goes.
#[derive(Debug)]
struct State {
    name: String,
    gone: Gone,
}

type Gone = Arc<Mutex<Vec<String>>>;

impl Drop for State {
    fn drop(&mut self) {
        self.gone.lock().expect("no panic").push(self.name.clone());
    }
}

impl RegionEngine for Wrapped<dyn RegionEngine> {
    fn name(&self) -> &str {
        &self.name
    }
    fn run(&self, exec: &Exec<'_>, inputs: Erased, body: Body) -> Erased {
        self.inner.run(exec, inputs, body)
    }
}

impl StackDriver for Wrapped<dyn StackDriver> {
    fn name(&self) -> &str {
        &self.name
    }
    fn run(&self, exec: &Exec<'_>, stack: &dyn Stack, carried: Erased, shared: Erased) -> Erased {
        self.state
            .gone
            .lock()
            .expect("no panic")
            .push(format!("{} runs", self.state.name));
        self.inner.run(exec, stack, carried, shared)
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LabelParams {
    label: String,
    #[serde(default)]
    lossy: Option<StepScope>,
}

/// Wraps the region engine (stage both) or the stack driver (stage rollout) in a label.
#[derive(Debug)]
struct Label {
    stage: AcceleratorStage,
    params: LabelParams,
    gone: Gone,
    /// What those below had counted when this was applied for the first time, if it was.
    recorded: Mutex<Option<Vec<Engagements>>>,
}

impl Accelerator for Label {
    fn name(&self) -> &str {
        match self.stage {
            AcceleratorStage::Both if self.params.label.starts_with("second") => "second",
            AcceleratorStage::Both => "label",
            AcceleratorStage::Rollout if self.params.label.starts_with("next") => "next-label",
            AcceleratorStage::Rollout => "rollout-label",
        }
    }
    fn stage(&self) -> AcceleratorStage {
        self.stage
    }
    fn safety(&self, _: &Backends) -> Safety {
        match self.params.lossy {
            None => Safety::Lossless,
            Some(scope) => Safety::Lossy(scope),
        }
    }
    fn after(&self) -> &[(&'static str, &'static str)] {
        match self.params.label.as_str() {
            "early" => &[("second", "it reads what that one leaves")],
            _ => &[],
        }
    }
    fn conflicts(&self) -> &[(&'static str, &'static str)] {
        match self.params.label.as_str() {
            "alone" => &[("second", "both name regions")],
            _ => &[],
        }
    }
    fn set_up(&self, weights: &Weights) -> Result<(), Refusal> {
        self.gone.lock().expect("no panic").push(format!(
            "{} set up with {}",
            self.params.label,
            weights.stored().len()
        ));
        Ok(())
    }
    fn apply(&self, mut plan: Backends, target: &Target<'_>) -> Result<Backends, Refusal> {
        let did = match self.params.label.as_str() {
            "replay" => Engagement::GraphReplayed,
            _ => Engagement::CallAnswered,
        };
        let mut recorded = self.recorded.lock().expect("no panic");
        let once = self.params.label.ends_with("once") && recorded.is_some();
        if !self.params.label.ends_with("idle") && !once {
            target.meter.count(did, self.params.label.len() as u64);
        }
        match &*recorded {
            Some(recorded) if did == Engagement::GraphReplayed => {
                let below = target.below.iter().zip(recorded);
                below.for_each(|(meter, counted)| meter.count_again(Engagements::default(), *counted));
            }
            _ => *recorded = Some(target.below.iter().map(|meter| meter.counted()).collect()),
        }
        if self.params.label == "refuse" {
            return Err(Refusal::new(
                "nothing can be labelled `refuse`",
                "Choose another `label`",
            ));
        }
        let named = |inner: &str| format!("{}({inner})", self.params.label);
        let state = State {
            name: self.params.label.clone(),
            gone: self.gone.clone(),
        };
        match self.stage {
            AcceleratorStage::Both => {
                let inner = plan.regions;
                plan.regions = Arc::new(Wrapped {
                    name: named(inner.name()),
                    inner,
                    state,
                });
            }
            AcceleratorStage::Rollout => {
                let inner = plan.stacks;
                plan.stacks = Arc::new(Wrapped {
                    name: named(inner.name()),
                    inner,
                    state,
                });
            }
        }
        Ok(plan)
    }
}

fn base() -> Backends {
    Backends::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
}

fn model() -> ModelSpec {
    ModelSpec::default()
}

fn weights() -> Weights {
    let mut layout = ParamLayout::default();
    LayoutBuilder::new(&mut layout).param("weight", [1, 1], Init::Zeros);
    Weights::init(Arc::new(layout), 1, &ComputeDevice::cpu())
}

/// An accelerator outside of a registry.
fn direct(stage: AcceleratorStage, text: &str, gone: &Gone) -> Arc<dyn Accelerator> {
    Arc::new(Label {
        stage,
        params: LabelParams {
            label: text.into(),
            lossy: None,
        },
        gone: gone.clone(),
        recorded: Mutex::default(),
    })
}

/// Set up with one weight.
fn at_work(arrangement: Arrangement) -> Acceleration {
    arrangement.set_up(&weights()).expect("nothing refuses it")
}

fn registry() -> AcceleratorRegistry {
    let mut registry = AcceleratorRegistry::default();
    let build = |stage| {
        move |params: LabelParams| {
            if params.label.is_empty() {
                return Err(Refusal::new("`label` is empty", "Give it a text"));
            }
            Ok(Label {
                stage,
                params,
                gone: Gone::default(),
                recorded: Mutex::default(),
            })
        }
    };
    registry
        .register(
            "label",
            AcceleratorStage::Both,
            "Names regions.",
            build(AcceleratorStage::Both),
        )
        .unwrap();
    registry
        .register(
            "Rollout-Label",
            AcceleratorStage::Rollout,
            "Names stacks.",
            build(AcceleratorStage::Rollout),
        )
        .unwrap();
    registry
}

fn label(text: &str) -> Params {
    Params::from([("label".into(), text.into())])
}

fn lossy(text: &str) -> Params {
    Params::from([
        ("label".into(), text.into()),
        ("lossy".into(), "all_steps".into()),
    ])
}

#[test]
fn without_entries_a_rollout_has_the_very_plan_of_training() {
    let acceleration = at_work(registry().arrangement(base(), [], [], &model()).unwrap());
    let weights = weights();
    let scope = acceleration.rollout(&weights).unwrap();
    assert!(Arc::ptr_eq(scope.plan(), acceleration.training()));
    assert!(acceleration.is_exact_on_policy() && acceleration.applied().next().is_none());
    assert_eq!(acceleration.training().describe(), base().describe());
    assert_eq!(acceleration.to_string(), "shared: none; rollout: none");
}

#[test]
fn shared_entries_are_in_both_plans_in_list_order_and_rollout_entries_in_one() {
    let (a, b, c) = (label("a"), label("second"), label("c"));
    let acceleration = registry()
        .arrangement(
            base(),
            [("label", &a), ("LABEL", &b)],
            [("rollout-label", &c)],
            &model(),
        )
        .unwrap();
    let acceleration = at_work(acceleration);
    let weights = weights();
    let scope = acceleration.rollout(&weights).unwrap();
    assert_eq!(acceleration.training().regions.name(), "second(a(keep-all))");
    assert_eq!(scope.plan().regions.name(), "second(a(keep-all))");
    assert_eq!(acceleration.training().stacks.name(), "run-all");
    assert_eq!(scope.plan().stacks.name(), "c(run-all)");
    let applied: Vec<(Slot, &str)> = acceleration
        .applied()
        .map(|each| (each.slot, &*each.name))
        .collect();
    assert_eq!(
        applied,
        [
            (Slot::Shared, "label"),
            (Slot::Shared, "second"),
            (Slot::Rollout, "rollout-label")
        ]
    );
}

#[test]
fn the_promise_is_that_of_the_least_safe_entry() {
    let (exact, inexact) = (label("a"), lossy("b"));
    let windowed = Params::from([
        ("label".into(), "w".into()),
        ("lossy".into(), "outside_sde_window".into()),
    ]);
    let of = |rollout: &Params| {
        registry()
            .arrangement(
                base(),
                [("label", &exact)],
                [("rollout-label", rollout)],
                &model(),
            )
            .unwrap()
    };
    assert!(of(&exact).is_exact_on_policy());
    assert!(
        of(&windowed).is_exact_on_policy(),
        "no term of the loss sees those steps"
    );
    assert!(!of(&inexact).is_exact_on_policy());
    assert_eq!(
        of(&inexact).to_string(),
        "shared: label (lossless); rollout: rollout-label (lossy)"
    );
    let last = Applied {
        slot: Slot::Rollout,
        name: "rollout-label".into(),
        safety: Safety::Lossy(StepScope::OutsideSdeWindow),
    };
    assert_eq!(of(&windowed).applied().last(), Some(&last));
}

#[test]
fn every_rollout_has_state_of_its_own_that_goes_with_it_last_entry_first() {
    let gone = Gone::default();
    let rollout = ["first", "next"].map(|name| direct(AcceleratorStage::Rollout, name, &gone));
    let acceleration = at_work(Arrangement::new(base(), &[], &rollout, &model()).unwrap());
    let taken = || std::mem::take(&mut *gone.lock().expect("no panic"));
    taken();
    let weights = weights();
    for _ in 0..100 {
        let scope = acceleration.rollout(&weights).unwrap();
        assert_eq!(scope.plan().stacks.name(), "next(first(run-all))");
        assert!(taken().is_empty());
        drop(scope);
        assert_eq!(taken(), ["next", "first"]);
    }
}

#[test]
fn a_panic_within_a_rollout_leaves_no_state() {
    let gone = Gone::default();
    let shared = [direct(AcceleratorStage::Both, "shared", &gone)];
    let rollout = [direct(AcceleratorStage::Rollout, "inner", &gone)];
    let acceleration = at_work(Arrangement::new(base(), &shared, &rollout, &model()).unwrap());
    gone.lock().expect("no panic").clear();
    let weights = weights();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let scope = acceleration.rollout(&weights).unwrap();
        let exec = scope.rollout().exec(CallContext::single(Stage::Rollout));
        assert_eq!(exec.backends().stacks.name(), "inner(run-all)");
        panic!("in the middle of it");
    }));
    assert!(panic.is_err());
    assert_eq!(
        *gone.lock().expect("no panic"),
        ["inner"],
        "the rollout's state went, the shared one stayed"
    );
    assert_eq!(acceleration.training().stacks.name(), "run-all");
    assert!(acceleration.rollout(&weights).is_ok());
}

#[test]
fn accelerators_are_set_up_once_in_list_order_with_the_weights() {
    let gone = Gone::default();
    let shared = ["a", "second"].map(|name| direct(AcceleratorStage::Both, name, &gone));
    let acceleration = Arrangement::new(base(), &shared, &[], &model()).unwrap();
    assert!(
        gone.lock().expect("no panic").is_empty(),
        "not before the weights are there"
    );
    let _at_work = acceleration.set_up(&weights()).unwrap();
    assert_eq!(
        *gone.lock().expect("no panic"),
        ["a set up with 1", "second set up with 1"]
    );
}

#[test]
fn what_was_done_is_counted_per_accelerator_and_an_idle_one_says_why() {
    let (one, two) = (label("abc"), label("second"));
    let acceleration = registry()
        .arrangement(
            base(),
            [("label", &one), ("label", &two)],
            [("rollout-label", &one)],
            &model(),
        )
        .unwrap();
    let acceleration = at_work(acceleration);
    let counted = |acceleration: &Acceleration| -> Vec<(String, u64, bool)> {
        (acceleration.take_activity().into_iter())
            .map(|each| {
                let calls = each.engagements.of(Engagement::CallAnswered);
                (each.name, calls, each.why_idle.is_some())
            })
            .collect()
    };
    let named = |name: &str, calls, idle| (name.to_owned(), calls, idle);
    assert_eq!(
        counted(&acceleration),
        [
            named("label", 3, false),
            named("second", 6, false),
            named("rollout-label", 3, false)
        ]
    );
    let weights = weights();
    acceleration.rollout(&weights).unwrap();
    assert_eq!(
        counted(&acceleration),
        [
            named("label", 0, true),
            named("second", 0, true),
            named("rollout-label", 3, false)
        ],
        "counts are those since the last time"
    );
}

#[test]
fn what_a_replay_does_again_is_counted_again_and_what_stopped_is_idle_beside_it() {
    let gone = Gone::default();
    let shared = ["abc", "second idle"].map(|text| direct(AcceleratorStage::Both, text, &gone));
    let rollout = ["replay", "next once"].map(|text| direct(AcceleratorStage::Rollout, text, &gone));
    let acceleration = at_work(Arrangement::new(base(), &shared, &rollout, &model()).unwrap());
    let idle = || {
        let activity = acceleration.take_activity().into_iter();
        activity.map(|each| each.why_idle.is_some())
    };
    assert!(idle().eq([false, true, false, false]));
    acceleration.rollout(&weights()).unwrap();
    assert!(
        idle().eq([false, true, false, true]),
        "the first does in a replay what it did; the last stands above and has stopped"
    );
    assert!(idle().eq([true; 4]), "nothing was replayed");
}

#[test]
fn what_an_accelerator_did_not_do_is_told_once_with_its_number() {
    let acceleration = at_work(Arrangement::new(base(), &[], &[], &model()).unwrap());
    assert!(acceleration.take_activity().is_empty());
    let meter = Meter::default();
    for time in 1..=3 {
        meter.falls_short("calls_not_recorded", format!("the memory is full, {time}"));
    }
    let shortfalls: Vec<(Shortfall, u64)> = meter.take_shortfalls().into_iter().collect();
    let first = Shortfall {
        name: "calls_not_recorded".into(),
        why: "the memory is full, 1".into(),
    };
    assert_eq!(shortfalls, [(first, 3)]);
    assert!(meter.take_shortfalls().is_empty(), "taken is taken");
}

#[test]
fn a_removed_name_says_what_to_write_instead() {
    let mut registry = registry();
    registry
        .remove(
            "Old-Label",
            "labels have a `kind` now",
            "Write `{ name = \"label\" }`",
        )
        .unwrap();
    let error = registry
        .build("old-LABEL", &Params::new())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "there is no accelerator `old-LABEL`: labels have a `kind` now. Write `{ name = \"label\" }`"
    );
    assert!(registry.remove("label", "", "").is_err(), "it is there");
}

#[test]
fn an_unknown_name_lists_what_is_available_and_the_nearest() {
    let error = registry().build("rolout_label", &Params::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no accelerator `rolout_label`; available: label, rollout-label. Did you mean \
         `rollout-label`?"
    );
    let empty = AcceleratorRegistry::default()
        .build("label", &Params::new())
        .unwrap_err();
    assert_eq!(
        empty.to_string(),
        "there is no accelerator `label`. No accelerator is registered in this program; remove the entry"
    );
}

#[test]
fn wrong_parameters_name_the_accelerator_and_the_parameter() {
    let message = |params| registry().build("label", &params).unwrap_err().to_string();
    let unknown = message(Params::from([("lable".into(), "a".into())]));
    assert!(
        unknown.starts_with(
            "parameters of the accelerator `label`: `[params]` has no key `lable` (did you mean `label`?)"
        ),
        "{unknown}"
    );
    let missing = message(Params::new());
    assert!(missing.contains("`params` lacks `label`"), "{missing}");
    let refused = message(label(""));
    assert_eq!(
        refused,
        "the accelerator `label` cannot be used: `label` is empty. Give it a text"
    );
}

#[test]
fn every_entry_that_cannot_be_in_force_is_reported_at_once() {
    let (good, refused) = (label("a"), label("refuse"));
    let shared = [("rollout-label", &good), ("label", &refused), ("label", &good)];
    let errors = registry()
        .arrangement(base(), shared, [("label", &good)], &model())
        .unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "the accelerator `rollout-label` works in rollouts only, but `acceleration.shared` is in force in training \
             too. Move the entry to `acceleration.rollout`, or choose an accelerator of stage `both`",
            "the accelerator `label` stands in `acceleration.shared` twice. Keep one of the entries",
            "the accelerator `label` is made for rollout and training together, but `acceleration.rollout` is in force \
             in rollouts only. Move the entry to `acceleration.shared`",
            "the accelerator `label` cannot be used: nothing can be labelled `refuse`. Choose another `label`",
        ]
    );
    let unknown = registry()
        .arrangement(base(), [("x", &good)], [("y", &good)], &model())
        .unwrap_err();
    assert_eq!(unknown.len(), 2);
}

#[test]
fn order_and_conflicts_that_accelerators_declare_are_kept() {
    let (early, alone, second) = (label("early"), label("alone"), label("second"));
    let of = |entries: [&Params; 2]| {
        let entries = entries.map(|params| ("label", params));
        registry().arrangement(base(), entries, [], &model())
    };
    assert!(of([&second, &early]).is_ok());
    let order = of([&early, &second]).unwrap_err();
    assert_eq!(
        order[0].to_string(),
        "the accelerator `label` must stand after `second` in `acceleration.shared`: it reads what that one leaves. \
         Move the entry of `label` below that of `second`"
    );
    for entries in [[&alone, &second], [&second, &alone]] {
        let conflict = of(entries).unwrap_err();
        assert_eq!(
            conflict[0].to_string(),
            "the accelerators `label` and `second` exclude each other: both name regions. Remove one of them"
        );
    }
}
