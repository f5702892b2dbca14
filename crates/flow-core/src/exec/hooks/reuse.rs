//! Exact reuse: what a row of a call is computed from, and the parts of a model that depend on little of it.
//!
//! Members of a group ask for the same prompt at the same noise level. What depends on these two alone is the same for
//! all of them, and whoever answers for it may compute it once: the bits are those of computing it again, because no
//! kernel's row depends on the others of its batch ([`Kernels::is_row_independent`](crate::Kernels::is_row_independent)).

use crate::exec::{Exec, FlowModel};
use crate::model::ModelInput;
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// What a row of a call is computed from, as host data. Absent where whoever opened the call does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// Bytes that determine the condition, for instance its tokens.
    pub condition: Option<Arc<[u8]>>,
    /// The bits of the noise level in f32.
    pub sigma: Option<u32>,
    /// Rows of the call with the same number hold the same latent, bit for bit.
    pub latent: Option<u64>,
}

/// What a part of a model reads of a row, besides weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DependsOn {
    /// The noise level.
    Sigma,
    /// The condition.
    Condition,
    /// Both.
    SigmaAndCondition,
}

/// A part of a model that reads no latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reusable {
    /// Its name, unique within the model, or within a block of a stack.
    pub name: &'static str,
    /// What it reads.
    pub depends_on: DependsOn,
}

/// A part as a driver sees it: a function of the rows asked for, of all of them if `None`. The batch is the first axis of
/// its outputs.
pub type RowsBody<'a> = &'a dyn Fn(&Exec<'_>, Option<&[usize]>) -> Vec<DispatchTensor>;

/// A call of the model as a driver sees it.
pub type CallBody<'a> = &'a dyn Fn(&Exec<'_>, ModelInput) -> Tensor<2>;

/// Computes what is the same for several rows or calls, or takes it from where it was computed. Its answers have the bits
/// of computing everything.
pub trait ReuseDriver: Debug + Send + Sync {
    /// Name in logs and manifests.
    fn name(&self) -> &str;

    /// The outputs of `part`, for every row of the call.
    fn part(&self, exec: &Exec<'_>, part: Reusable, body: RowsBody<'_>) -> Vec<DispatchTensor>;

    /// The velocity `[B, N]` of `model` at `input`.
    fn velocity(
        &self,
        exec: &Exec<'_>,
        model: &dyn FlowModel,
        input: ModelInput,
        compute: CallBody<'_>,
    ) -> Tensor<2>;
}

/// Computes everything.
#[derive(Debug)]
pub struct NoReuse;

impl ReuseDriver for NoReuse {
    fn name(&self) -> &str {
        "recompute"
    }

    fn part(&self, exec: &Exec<'_>, _: Reusable, body: RowsBody<'_>) -> Vec<DispatchTensor> {
        body(exec, None)
    }

    fn velocity(
        &self,
        exec: &Exec<'_>,
        _: &dyn FlowModel,
        input: ModelInput,
        compute: CallBody<'_>,
    ) -> Tensor<2> {
        compute(exec, input)
    }
}

impl Exec<'_> {
    /// A part of a model that reads no latent: a pure function of `inputs`, of the weights that the context shows, and of
    /// what [`Reusable::depends_on`] names. A row of `inputs` determines that row of the result.
    pub fn reusable<I: Tensors, O: Tensors>(
        &self,
        name: &'static str,
        depends_on: DependsOn,
        inputs: I,
        body: impl Fn(&Exec<'_>, I) -> O,
    ) -> O {
        let erased = |exec: &Exec<'_>, some: Option<&[usize]>| {
            let inputs = inputs.clone();
            body(exec, some.map_or(inputs.clone(), |some| inputs.rows(some))).split()
        };
        O::join(
            self.backends
                .reuse
                .part(self, Reusable { name, depends_on }, &erased),
        )
    }
}
