//! Exact reuse of what a part of a model, or a whole call, computes for one row.
//!
//! Members of a group ask for the same prompt at the same noise level. What depends on these two alone is the same for
//! all of them, and whoever answers for it may compute it once: the bits are those of computing it again, because no
//! kernel's row depends on the others of its batch ([`Kernels::is_row_independent`](crate::Kernels::is_row_independent)).

use crate::exec::{CallBody, DependsOn, Exec, FlowModel, Reusable, ReuseDriver, RowsBody};
use crate::model::ModelInput;
use crate::tensors::Tensors;
use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

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
