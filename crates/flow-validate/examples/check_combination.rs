//! What may run together: the findings for every slot, stage and paradigm of a lossy accelerator.

use flow_accel::{AcceleratorStage, Paradigm, Safety, Slot, StepScope};
use flow_validate::{Entry, TrainerKind, check, explain};

fn main() {
    let paradigms = [Paradigm::Coupled, Paradigm::Decoupled, Paradigm::Distillation].map(Some);
    for paradigm in paradigms.into_iter().chain([None]) {
        let trainer = TrainerKind {
            name: "mine".into(),
            paradigm,
        };
        for (slot, stage) in [
            (Slot::Shared, AcceleratorStage::Both),
            (Slot::Rollout, AcceleratorStage::Rollout),
        ] {
            let name = "feature-cache".into();
            let entry = Entry {
                slot: slot.name().into(),
                position: 0,
                name,
                stage,
                safety: Safety::Lossy(StepScope::AllSteps),
            };
            println!("{}, {slot}:", paradigm.map_or("no paradigm", Paradigm::name));
            let findings = check(&[entry], &trainer);
            if findings.is_empty() {
                println!("  in order");
            }
            for finding in findings {
                println!(
                    "  {finding}\n  why: {}",
                    explain(finding.code).map_or("", |known| known.why)
                );
            }
        }
    }
}
