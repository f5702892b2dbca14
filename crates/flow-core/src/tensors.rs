//! Tensors whose rank is erased, and the tuples of tensors that cross the edge of a block or region.

use burn::backend::{Dispatch, DispatchTensor, DispatchTensorKind};
use burn::tensor::{FloatDType, Int, Slice, Tensor, TensorData, kind::Basic};
use std::ops::Range;

/// A tensor outside any autodiff graph, its rank erased. Kernels compute on these only.
pub type RawTensor = DispatchTensor;

/// Whether `tensor` belongs to an autodiff graph and needs a gradient.
pub fn is_tracked(tensor: &DispatchTensor) -> bool {
    matches!(tensor.kind, DispatchTensorKind::Autodiff(_)) && Dispatch::is_tracked(tensor)
}

/// Whether `tensor` is a leaf of an autodiff graph: tracked, and not computed from others.
pub fn is_leaf(tensor: &DispatchTensor) -> bool {
    use burn::backend::ops::FloatTensorOps;
    matches!(tensor.kind, DispatchTensorKind::Autodiff(_)) && Dispatch::float_is_require_grad(tensor)
}

/// `tensor` without its graph.
pub fn plain(tensor: &DispatchTensor) -> RawTensor {
    use burn::backend::AutodiffBackend;
    match tensor.kind {
        DispatchTensorKind::Autodiff(_) => <Dispatch as AutodiffBackend>::inner(tensor.clone()),
        _ => {
            let mut plain = tensor.clone();
            plain.autodiff = Default::default();
            plain
        }
    }
}

/// A fresh leaf of a new graph holding `tensor`'s values.
pub fn leaf(tensor: &RawTensor) -> DispatchTensor {
    use burn::backend::{AutodiffBackend, ops::FloatTensorOps};
    let untracked = <Dispatch as AutodiffBackend>::from_inner(tensor.clone());
    Dispatch::float_set_require_grad(untracked, true)
}

/// The buffer behind a tensor. Several tensors may share one, and a view may be smaller than it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Tells it from every other buffer that is in use at the time.
    pub identity: usize,
    /// Its length, which a tensor keeps in use, view or not.
    pub bytes: u64,
}

/// The buffer of `tensor`'s values.
///
/// # Panics
/// If `tensor` is tracked, quantised, or of a backend that this build has not.
pub fn buffer(tensor: &RawTensor) -> Buffer {
    use burn::backend::BackendTensor;
    match &tensor.kind {
        DispatchTensorKind::Flex(
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
        ) => Buffer {
            identity: tensor.bytes().as_ptr() as usize,
            bytes: tensor.bytes().len() as u64,
        },
        #[cfg(feature = "cube")]
        DispatchTensorKind::Cube(
            BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
        ) => Buffer {
            identity: tensor.handle.memory.descriptor().id.value,
            bytes: tensor.handle.size(),
        },
        _ => panic!("buffers of this kind of tensor are not known"),
    }
}

/// Whether `tensor` holds real numbers, so that it may have a gradient.
pub fn is_float(tensor: &DispatchTensor) -> bool {
    use burn::backend::TensorMetadata;
    tensor.dtype().is_float()
}

/// The axes of `tensor`, outermost first.
pub fn shape(tensor: &DispatchTensor) -> Vec<usize> {
    use burn::backend::TensorMetadata;
    tensor.shape().to_vec()
}

/// Some rows of a tensor whose first axis is the batch, in the order asked for.
///
/// # Panics
/// If there is no such row.
pub fn select<const D: usize, K: Basic + 'static>(tensor: &Tensor<D, K>, rows: &[usize]) -> Tensor<D, K> {
    let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let index = TensorData::new(index, [rows.len()]);
    tensor
        .clone()
        .select(0, Tensor::<1, Int>::from_data(index, &tensor.device()))
}

/// As [`select`], of a plain float tensor on any device.
///
/// # Panics
/// As [`select`].
pub fn select_rows(tensor: &RawTensor, rows: &[usize]) -> RawTensor {
    use burn::backend::{
        TensorMetadata,
        ops::{FloatTensorOps, IntTensorOps},
    };
    let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let index = Dispatch::int_from_data(TensorData::new(index, [rows.len()]), &tensor.device());
    Dispatch::float_select(tensor.clone(), 0, index)
}

/// Plain float tensors of the same shape but for the first axis, one below the other.
///
/// # Panics
/// If there is none, or the shapes differ.
pub fn stacked(tensors: Vec<RawTensor>) -> RawTensor {
    use burn::backend::ops::FloatTensorOps;
    Dispatch::float_cat(tensors, 0)
}

/// Float tensors `[B, S, _]` of the same `B` and `S` side by side, `[B, S, sum]`; one alone as it is.
///
/// # Panics
/// If there is none, or the shapes or types do not fit.
pub fn side_by_side<'a>(parts: impl IntoIterator<Item = &'a DispatchTensor>) -> DispatchTensor {
    let mut parts: Vec<DispatchTensor> = parts.into_iter().cloned().collect();
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let parts: Vec<Tensor<3>> = parts.into_iter().map(Tensor::from_dispatch).collect();
    Tensor::cat(parts, 2).into_dispatch()
}

/// The gradients of the `wanted` ones of parts of these `widths`, for the `gradient` of them [side by side](side_by_side).
pub fn gradients_of_sides(gradient: RawTensor, widths: &[usize], wanted: &[bool]) -> Vec<Option<RawTensor>> {
    if let [_] = widths {
        return vec![Some(gradient)];
    }
    let all = Tensor::<3>::from_dispatch(gradient);
    let mut end = 0;
    let parts = widths.iter().zip(wanted).map(|(width, wanted)| {
        let start = end;
        end += width;
        wanted.then(|| all.clone().narrow(2, start, *width).into_dispatch())
    });
    parts.collect()
}

/// Values `range` of a plain float tensor in row-major order, as one row; it may be a view, which holds all of them.
///
/// # Panics
/// If there are not so many.
pub fn row_part(tensor: &RawTensor, range: Range<usize>) -> RawTensor {
    use burn::backend::{TensorMetadata, ops::FloatTensorOps};
    let row = Dispatch::float_reshape(tensor.clone(), [tensor.shape().num_elements()].into());
    Dispatch::float_slice(row, &[Slice::from(range)])
}

/// Zeros of `tensor`'s shape, on its device.
pub fn zeros_like(tensor: &RawTensor) -> RawTensor {
    use burn::backend::{TensorMetadata, ops::FloatTensorOps};
    Dispatch::float_zeros(tensor.shape(), &tensor.device(), tensor.dtype().into())
}

/// `tensor` in another float type; itself if it has that type.
pub fn cast(tensor: &RawTensor, dtype: FloatDType) -> RawTensor {
    use burn::backend::{TensorMetadata, ops::FloatTensorOps};
    if tensor.dtype() == dtype.into() {
        return tensor.clone();
    }
    // As one row: rows of more axes may be padded on a GPU, and every kernel that reads them would copy them first.
    let shape = tensor.shape();
    let row = Dispatch::float_reshape(tensor.clone(), [shape.num_elements()].into());
    Dispatch::float_reshape(Dispatch::float_cast(row, dtype), shape)
}

/// Makes `copy` the values of `of` in the type that it has.
pub fn copy_again(copy: &mut RawTensor, of: &RawTensor) {
    use burn::backend::TensorMetadata;
    *copy = cast(of, copy.dtype().into());
}

/// A fixed tuple of tensors, erased to a list and back.
///
/// Every tensor that crosses a block's edge has the batch as its first axis, so that a feature cache may gather and
/// scatter trajectories without knowing the model.
pub trait Tensors: Sized + Clone + Send + 'static {
    /// The tensors in order.
    fn split(self) -> Vec<DispatchTensor>;
    /// Some rows of the batch, in the order asked for.
    ///
    /// # Panics
    /// If there is no such row.
    fn rows(self, rows: &[usize]) -> Self;
    /// The inverse of [`split`](Self::split).
    ///
    /// # Panics
    /// If the number of tensors, a rank or a kind differs: a bug of the caller, never of a user's input.
    fn join(tensors: Vec<DispatchTensor>) -> Self;
}

impl Tensors for () {
    fn split(self) -> Vec<DispatchTensor> {
        Vec::new()
    }
    fn rows(self, _: &[usize]) -> Self {}
    fn join(tensors: Vec<DispatchTensor>) -> Self {
        assert!(tensors.is_empty(), "no tensors expected, got {}", tensors.len());
    }
}

impl<const D: usize, K: Basic + 'static> Tensors for Tensor<D, K> {
    fn split(self) -> Vec<DispatchTensor> {
        vec![self.into_dispatch()]
    }
    fn rows(self, rows: &[usize]) -> Self {
        select(&self, rows)
    }
    fn join(tensors: Vec<DispatchTensor>) -> Self {
        let [only] = tensors.try_into().expect("one tensor crosses here");
        Tensor::from_dispatch(only)
    }
}

macro_rules! tuple_of_tensors {
    ($($name:ident $rank:ident $kind:ident),+) => {
        impl<$(const $rank: usize, $kind: Basic + 'static),+> Tensors for ($(Tensor<$rank, $kind>,)+) {
            #[allow(non_snake_case)]
            fn split(self) -> Vec<DispatchTensor> {
                let ($($name,)+) = self;
                vec![$($name.into_dispatch()),+]
            }
            #[allow(non_snake_case)]
            fn rows(self, rows: &[usize]) -> Self {
                let ($($name,)+) = self;
                ($(select(&$name, rows),)+)
            }
            fn join(tensors: Vec<DispatchTensor>) -> Self {
                let mut tensors = tensors.into_iter();
                let joined = ($(Tensor::<$rank, $kind>::from_dispatch(
                    tensors.next().expect(concat!("tensor ", stringify!($name), " crosses here")),
                ),)+);
                assert!(tensors.next().is_none(), "more tensors cross here than the tuple holds");
                joined
            }
        }
    };
}

tuple_of_tensors!(a A AKind);
tuple_of_tensors!(a A AKind, b B BKind);
tuple_of_tensors!(a A AKind, b B BKind, c C CKind);
tuple_of_tensors!(a A AKind, b B BKind, c C CKind, d D DKind);
tuple_of_tensors!(a A AKind, b B BKind, c C CKind, d D DKind, e E EKind);
tuple_of_tensors!(a A AKind, b B BKind, c C CKind, d D DKind, e E EKind, f F FKind);
