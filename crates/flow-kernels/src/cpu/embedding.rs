//! Rows of a table by integer index.

use burn::backend::DispatchTensor;
use flow_core::cpu::{CpuTensor, from_vec, read_ints};
use flow_core::{RawTensor, autograd, tensors::plain};
use std::sync::Arc;

/// `table_VD[index_BL]`, `[B, L, D]`. Backward adds up the rows of one index in the order of the batch.
pub(crate) fn embedding(table: &DispatchTensor, index: &RawTensor) -> DispatchTensor {
    let shape = burn::backend::TensorMetadata::shape(&plain(index)).to_vec();
    autograd::apply("embedding", &[table], |inputs, _| {
        let table = CpuTensor::read(&inputs[0]);
        let (rows, columns) = table.rows_and_columns();
        let index: Vec<usize> = read_ints(index)
            .into_iter()
            .map(|index| match usize::try_from(index) {
                Ok(row) if row < rows => row,
                _ => panic!("embedding index {index} in a table of {rows} rows"),
            })
            .collect();
        let mut y = Vec::with_capacity(index.len() * columns);
        for row in &index {
            y.extend_from_slice(&table.values()[row * columns..][..columns]);
        }
        let output = from_vec(y, &[&shape[..], &[columns]].concat());
        let backward: autograd::Backward = Arc::new(move |incoming| {
            let gradient = CpuTensor::read(incoming.gradient());
            let mut dtable = vec![0.0; rows * columns];
            for (row, gradient) in index.iter().zip(gradient.values().chunks_exact(columns.max(1))) {
                for (d, g) in dtable[row * columns..][..columns].iter_mut().zip(gradient) {
                    *d += g;
                }
            }
            vec![Some(from_vec(dtable, &[rows, columns]))]
        });
        (output, backward)
    })
}
