//! A workload's model, the layout of its weights and adapters, and which of them are trained: all but their values.

use super::workloads::Workload;
use flow_core::ParamLayout;
use flow_core::device::ComputeDevice;
use flow_models::{Architecture, ModelRegistry, Trained, add_lora, trained_mask};
use std::error::Error;
use std::sync::Arc;

type Outline = (Arc<dyn Architecture>, Arc<ParamLayout>, Arc<[bool]>);

/// That of `workload`, positions on `device`.
///
/// # Errors
/// Settings or targets that do not fit.
pub fn of(workload: &Workload, device: &ComputeDevice) -> Result<Outline, Box<dyn Error>> {
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).expect("a new registry");
    let model = models.build(workload.architecture, &workload.settings, device)?;
    let mut layout = (**model.layout()).clone();
    let trained = match &workload.lora {
        Some(lora) => {
            let targets: Vec<String> = lora.targets.iter().map(|target| (*target).into()).collect();
            add_lora(&*model, &mut layout, &targets, lora.rank, lora.alpha)?;
            Trained::Lora
        }
        None => Trained::Full,
    };
    let trained = trained_mask(&layout, trained)?;
    Ok((model, Arc::new(layout), trained))
}
