//! What a registry knows of the kinds of accelerator that it can build.

use super::*;

#[test]
fn a_name_is_registered_once_whatever_its_case() {
    let mut registry = registry();
    let build = |params: LabelParams| {
        Ok(Label {
            stage: AcceleratorStage::Both,
            params,
            gone: Gone::default(),
            recorded: Mutex::default(),
        })
    };
    let again = registry.register("LABEL", AcceleratorStage::Both, "", build);
    assert_eq!(
        again.unwrap_err(),
        NameTaken {
            what: "accelerator",
            name: "label".into()
        }
    );
    let known: Vec<(&str, &str)> = registry
        .kinds()
        .map(|kind| (kind.name(), kind.summary()))
        .collect();
    assert_eq!(
        known,
        [("label", "Names regions."), ("rollout-label", "Names stacks.")]
    );
    assert!(registry.kind("Rollout-LABEL").is_some() && registry.kind("rollout_label").is_none());
}

#[test]
fn a_kind_knows_its_stage_and_floor_and_another_stage_of_what_it_builds_is_refused() {
    let mut registry = registry();
    let stages: Vec<AcceleratorStage> = registry.kinds().map(|kind| kind.stage()).collect();
    assert_eq!(stages, [AcceleratorStage::Both, AcceleratorStage::Rollout]);
    let build = |params: LabelParams| {
        Ok(Label {
            stage: AcceleratorStage::Both,
            params,
            gone: Gone::default(),
            recorded: Mutex::default(),
        })
    };
    let kind = registry.register("odd", AcceleratorStage::Rollout, "", build);
    kind.unwrap().set_floor("does nothing");
    let floors: Vec<Option<&str>> = registry.kinds().map(|kind| kind.floor()).collect();
    assert_eq!(floors, [None, Some("does nothing"), None]);
    assert_eq!(
        registry.build("odd", &label("x")).unwrap_err().to_string(),
        "the accelerator `odd` cannot be used: it is registered with stage `rollout`, but its own is `both`. This is a \
         defect of the crate that registers it; remove the entry"
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

#[test]
fn a_refusal_that_knows_no_help_points_at_the_entry() {
    let error = flow_accel::AccelerationError::Refused {
        name: "label".into(),
        refusal: Refusal::because("the device does not label"),
    };
    assert_eq!(
        error.to_string(),
        "the accelerator `label` cannot be used: the device does not label. Change what the message names, or \
         remove the entry"
    );
}
