//! Tensors on their way into a safetensors file, for a program that computes the same.

use flow_core::{RawTensor, cpu};
use safetensors::{Dtype, tensor::TensorView};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::Path;

/// Named f32 or i64 arrays on their way into a safetensors file.
#[derive(Default)]
pub struct Arrays(BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Arrays {
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.insert(name.into(), (Dtype::F32, shape.to_vec(), bytes));
    }

    pub fn plain(&mut self, name: &str, tensor: &RawTensor) {
        use burn::backend::TensorMetadata;
        self.floats(name, &tensor.shape().to_vec(), &cpu::to_host(tensor));
    }

    pub fn tokens(&mut self, name: &str, rows: &[Vec<u32>]) {
        let bytes = rows
            .concat()
            .into_iter()
            .flat_map(|token| i64::from(token).to_le_bytes())
            .collect();
        self.0
            .insert(name.into(), (Dtype::I64, vec![rows.len(), rows[0].len()], bytes));
    }

    pub fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut views = HashMap::new();
        for (name, (dtype, shape, bytes)) in &self.0 {
            views.insert(name, TensorView::new(*dtype, shape.clone(), bytes)?);
        }
        Ok(safetensors::serialize_to_file(views, None, path)?)
    }
}
