//! SFT, supervised fine-tuning: flow matching (Lipman et al. 2023, arXiv 2210.02747) on the captioned images of the data set.
//!
//! Formulas as in Flow-Factory's trainer `sft`; each image has its own time and noise:
//!
//! ```text
//! x = (1 - sigma) x0 + sigma e            L = mean(mean((v - (e - x0))²))
//! ```
//!
//! Velocities are those of the caption alone, without classifier-free guidance: guidance belongs to sampling.

mod settings;

pub use settings::SftSettings;

use super::forward::Forward;
use super::{
    Algorithm, AlgorithmFactory, AlgorithmRegistry, LossContext, LossPoint, PointLoss, RecordKind,
    ReferenceWeights, mean_over_rows,
};
use crate::scheduler::Schedule;
use flow_accel::Paradigm;
use flow_config::AlgorithmFacts;
use flow_registry::NameTaken;

const NAME: &str = "sft";

/// Supervised fine-tuning.
#[derive(Clone, Debug)]
pub struct Sft {
    settings: SftSettings,
}

impl Sft {
    /// The algorithm with these settings.
    pub fn new(settings: SftSettings) -> Self {
        Self { settings }
    }

    /// Adds the algorithm to a registry.
    ///
    /// # Errors
    /// [`NameTaken`] if there is an algorithm of its name.
    pub fn register(registry: &mut AlgorithmRegistry) -> Result<(), NameTaken> {
        let facts = |_: &SftSettings| AlgorithmFacts {
            is_coupled: false,
            inner_epochs: 1,
            copies: 0,
        };
        let factory = AlgorithmFactory::new::<SftSettings>(
            NAME,
            "Supervised fine-tuning: flow matching on the captioned images of the data set, without rollouts.",
            facts,
            |_, settings| Ok(Box::new(Self::new(settings))),
        );
        let factory = factory.with_records(RecordKind::Examples);
        registry.register(factory.with_rules(settings::check))
    }
}

impl Algorithm for Sft {
    fn name(&self) -> &str {
        NAME
    }

    fn paradigm(&self) -> Paradigm {
        Paradigm::Decoupled
    }

    fn records(&self) -> Option<RecordKind> {
        Some(RecordKind::Examples)
    }

    fn reference(&self) -> Option<ReferenceWeights> {
        None
    }

    fn inner_epochs(&self) -> usize {
        1
    }

    fn advantage_clip(&self) -> f32 {
        // There are none.
        f32::MAX
    }

    fn positions(&self, _schedule: &Schedule, seed: u64, _iteration: u64, pass: usize) -> Vec<LossPoint> {
        self.settings.train_timesteps.positions(seed, pass)
    }

    fn loss(&self, context: &LossContext<'_, '_>, position: LossPoint) -> PointLoss {
        let times = &self.settings.train_timesteps;
        let forward = Forward::of_rows(context, position, times, &context.batch.samples);
        let v = forward.velocity_unguided(context, |call| context.pass.exec(call));
        PointLoss {
            loss: mean_over_rows(forward.error(context, v)),
            replayed: None,
            terms: Vec::new(),
        }
    }
}
