//! The registry, the slots and the plans that come out of them.

use flow_accel::{
    AccelerationError, Accelerator, AcceleratorRegistry, AcceleratorStage, AlreadyRegistered, Applied,
    Paradigm, Params, Plans, Refusal, Slot,
};
use flow_attention::CpuAttention;
use flow_core::exec::{Body, Stack};
use flow_core::{Exec, Plan, RegionEngine, StackDriver};
use flow_kernels::CpuKernels;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// What crosses the edge of a region or stack.
type Erased = Vec<flow_core::Plain>;

/// Puts its name before that of what it wraps; computes nothing.
#[derive(Debug)]
struct Wrapped<T: ?Sized> {
    name: String,
    inner: Arc<T>,
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
        self.inner.run(exec, stack, carried, shared)
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LabelParams {
    label: String,
    #[serde(default)]
    lossy: bool,
}

/// Wraps the region engine (stage both) or the stack driver (stage rollout) in a label.
#[derive(Debug)]
struct Label {
    stage: AcceleratorStage,
    params: LabelParams,
}

impl Accelerator for Label {
    fn name(&self) -> &str {
        match self.stage {
            AcceleratorStage::Both => "label",
            AcceleratorStage::Rollout => "rollout-label",
        }
    }
    fn stage(&self) -> AcceleratorStage {
        self.stage
    }
    fn lossless(&self, _: &Plan) -> bool {
        !self.params.lossy
    }
    fn apply(&self, mut plan: Plan) -> Result<Plan, Refusal> {
        if self.params.label == "refuse" {
            return Err(Refusal::new(
                "nothing can be labelled `refuse`",
                "Choose another `label`",
            ));
        }
        let named = |inner: &str| format!("{}({inner})", self.params.label);
        match self.stage {
            AcceleratorStage::Both => {
                let inner = plan.regions;
                plan.regions = Arc::new(Wrapped {
                    name: named(inner.name()),
                    inner,
                });
            }
            AcceleratorStage::Rollout => {
                let inner = plan.stacks;
                plan.stacks = Arc::new(Wrapped {
                    name: named(inner.name()),
                    inner,
                });
            }
        }
        Ok(plan)
    }
}

fn base() -> Plan {
    Plan::new(Arc::new(CpuAttention), Arc::new(CpuKernels::default()))
}

fn registry() -> AcceleratorRegistry {
    let mut registry = AcceleratorRegistry::default();
    let build = |stage| {
        move |params: LabelParams| {
            if params.label.is_empty() {
                return Err(Refusal::new("`label` is empty", "Give it a text"));
            }
            Ok(Label { stage, params })
        }
    };
    registry
        .register("label", "Names regions.", build(AcceleratorStage::Both))
        .unwrap();
    registry
        .register("Rollout-Label", "Names stacks.", build(AcceleratorStage::Rollout))
        .unwrap();
    registry
}

fn label(text: &str) -> Params {
    Params::from([("label".into(), text.into())])
}

fn lossy(text: &str) -> Params {
    Params::from([("label".into(), text.into()), ("lossy".into(), true.into())])
}

#[test]
fn without_entries_both_stages_share_the_base_plan_and_it_is_lossless() {
    let plans = registry().plans(base(), [], []).unwrap();
    assert!(Arc::ptr_eq(&plans.rollout, &plans.training));
    assert!(plans.lossless && plans.applied.is_empty());
    assert_eq!(plans.training.describe(), base().describe());
    assert_eq!(plans.to_string(), "shared: none; rollout: none");
}

#[test]
fn shared_entries_are_in_both_plans_in_list_order_and_rollout_entries_in_one() {
    let (a, b, c) = (label("a"), label("b"), label("c"));
    let plans = registry()
        .plans(base(), [("label", &a), ("LABEL", &b)], [("rollout-label", &c)])
        .unwrap();
    assert_eq!(plans.training.regions.name(), "b(a(keep-all))");
    assert_eq!(plans.rollout.regions.name(), "b(a(keep-all))");
    assert_eq!(plans.training.stacks.name(), "run-all");
    assert_eq!(plans.rollout.stacks.name(), "c(run-all)");
    assert!(plans.lossless);
    let applied: Vec<(Slot, &str)> = plans
        .applied
        .iter()
        .map(|each| (each.slot, &*each.name))
        .collect();
    assert_eq!(
        applied,
        [
            (Slot::Shared, "label"),
            (Slot::Shared, "label"),
            (Slot::Rollout, "rollout-label")
        ]
    );
}

#[test]
fn one_lossy_accelerator_in_either_slot_makes_the_plans_lossy() {
    let (exact, inexact) = (label("a"), lossy("b"));
    let shared = registry()
        .plans(base(), [("label", &exact), ("label", &inexact)], [])
        .unwrap();
    let rollout = registry()
        .plans(base(), [("label", &exact)], [("rollout-label", &inexact)])
        .unwrap();
    assert!(!shared.lossless && !rollout.lossless);
    assert_eq!(
        rollout.to_string(),
        "shared: label (lossless); rollout: rollout-label (lossy)"
    );
    let last = Applied {
        slot: Slot::Rollout,
        name: "rollout-label".into(),
        lossless: false,
    };
    assert_eq!(rollout.applied.last(), Some(&last));
}

#[test]
fn an_unknown_name_lists_what_is_available_and_the_nearest() {
    let error = registry().build("rolout_label", &Params::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no accelerator `rolout_label`; available: label, rollout-label. The nearest name is `rollout-label`"
    );
    let empty = AcceleratorRegistry::default()
        .build("label", &Params::new())
        .unwrap_err();
    assert_eq!(
        empty.to_string(),
        "there is no accelerator `label`; available: none"
    );
}

#[test]
fn wrong_parameters_name_the_accelerator_and_the_parameter() {
    let message = |params| registry().build("label", &params).unwrap_err().to_string();
    let unknown = message(Params::from([("lable".into(), "a".into())]));
    assert!(
        unknown.starts_with("parameters of the accelerator `label`: unknown field `lable`"),
        "{unknown}"
    );
    assert!(
        unknown.contains("`label`, `lossy`") || unknown.contains("`label` or `lossy`"),
        "{unknown}"
    );
    let missing = message(Params::new());
    assert!(missing.contains("missing field `label`"), "{missing}");
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
    let errors = registry().plans(base(), shared, [("label", &good)]).unwrap_err();
    let wrong = |name: &str, stage, slot| AccelerationError::WrongSlot {
        name: name.into(),
        stage,
        slot,
    };
    assert_eq!(errors.len(), 3);
    assert_eq!(
        errors[0],
        wrong("rollout-label", AcceleratorStage::Rollout, Slot::Shared)
    );
    assert!(matches!(&errors[1], AccelerationError::Refused { name, .. } if name == "label"));
    assert_eq!(errors[2], wrong("label", AcceleratorStage::Both, Slot::Rollout));
    assert_eq!(
        errors[0].to_string(),
        "the accelerator `rollout-label` (stage `rollout`) cannot stand in `acceleration.shared`. \
         Move it to `acceleration.rollout`"
    );

    let unknown = registry()
        .plans(base(), [("x", &good)], [("y", &good)])
        .unwrap_err();
    assert_eq!(unknown.len(), 2);
}

#[test]
fn a_name_is_registered_once_whatever_its_case() {
    let mut registry = registry();
    let build = |params: LabelParams| {
        Ok(Label {
            stage: AcceleratorStage::Both,
            params,
        })
    };
    assert_eq!(
        registry.register("LABEL", "", build),
        Err(AlreadyRegistered("label".into()))
    );
    let known: Vec<(&str, &str)> = registry
        .kinds()
        .map(|kind| (kind.name(), kind.summary()))
        .collect();
    assert_eq!(
        known,
        [("label", "Names regions."), ("rollout-label", "Names stacks.")]
    );
}

#[test]
fn the_schema_of_the_parameters_is_known_before_any_is_given() {
    let registry = registry();
    let schema = registry.kinds().next().unwrap().schema().as_value().clone();
    assert_eq!(schema["properties"]["label"]["type"], "string");
    assert_eq!(schema["required"], serde_json::json!(["label"]));
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn plans_can_be_built_without_a_registry() {
    let shared: Arc<dyn Accelerator> = Arc::new(Label {
        stage: AcceleratorStage::Both,
        params: LabelParams {
            label: "direct".into(),
            lossy: false,
        },
    });
    let plans = Plans::new(base(), &[shared], &[]).unwrap();
    assert_eq!(plans.training.regions.name(), "direct(keep-all)");
}

#[test]
fn names_of_slots_stages_and_paradigms_are_those_of_configs() {
    assert_eq!(Slot::ALL.map(Slot::name), ["shared", "rollout"]);
    assert_eq!(
        (Slot::named("rollout"), Slot::named("Rollout ")),
        (Some(Slot::Rollout), None)
    );
    for stage in AcceleratorStage::ALL {
        assert_eq!(stage.slot().takes(), stage);
    }
    let paradigms = [Paradigm::Coupled, Paradigm::Decoupled, Paradigm::Distillation];
    assert_eq!(
        paradigms.map(Paradigm::name),
        ["coupled", "decoupled", "distillation"]
    );
}
