//! Whole calls of a model, which a feature cache may answer for.

use crate::exec::{Exec, FlowModel, VelocityDriver};
use crate::model::ModelInput;
use burn::tensor::{DType, Tensor};

/// Calls the model for every row.
#[derive(Debug)]
pub struct CallModel;

impl VelocityDriver for CallModel {
    fn name(&self) -> &str {
        "call-model"
    }

    fn run(&self, exec: &Exec<'_>, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        model.velocity(exec, input)
    }

    fn computes_every_row(&self) -> bool {
        true
    }
}

impl Exec<'_> {
    /// The velocity of `model` at `input`, as the plan's driver decides: what a sampler and a loss call. In f32, like
    /// latents, whatever the model computes in.
    pub fn velocity(&self, model: &dyn FlowModel, input: ModelInput) -> Tensor<2> {
        let compute = |exec: &Exec<'_>, input| exec.backends.velocities.run(exec, model, input);
        let velocity = self.backends.reuse.velocity(self, model, input, &compute);
        match velocity.dtype() {
            DType::F32 => velocity,
            _ => velocity.cast(DType::F32),
        }
    }
}
