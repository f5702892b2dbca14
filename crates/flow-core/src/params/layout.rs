//! The names, shapes and roles of a model's weights.

use super::Init;
use crate::CoreError;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A typed reference to one weight of rank `D`. Only a [`LayoutBuilder`] makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle<const D: usize>(pub(crate) u32);

impl<const D: usize> Handle<D> {
    /// Position in the layout.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The role of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// Trained in full fine-tuning, frozen under adapters.
    Base,
    /// A constant that a file may hold, for instance a position table. Never trained.
    Buffer,
    /// A factor of an adapter.
    Adapter,
}

/// Rows of one sample that a linear weight multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// One for each token of the latent.
    #[default]
    Tokens,
    /// One for each token of the encoded text.
    Text,
    /// One for each token of both, which stand in one sequence.
    TokensAndText,
    /// One: the noise level, a pooled condition.
    Sample,
}

/// One weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Name in files; those of `diffusers` where the architecture exists there.
    pub name: String,
    /// Shape; linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Role.
    pub kind: ParamKind,
    /// Whether AdamW decays it: matrices yes, biases, norms and tables no.
    pub decays: bool,
    /// What a linear weight is applied to; of others it says nothing.
    pub rows: Rows,
}

/// A low-rank adapter of a linear weight: `y = W x + scale · B (A x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapter {
    /// `A`, `[rank, in]`.
    pub down: Handle<2>,
    /// `B`, `[out, rank]`.
    pub up: Handle<2>,
    /// `alpha / rank`.
    pub scale: f32,
}

/// All weights of a model, in a fixed order.
#[derive(Clone, Debug, Default)]
pub struct ParamLayout {
    specs: Vec<ParamSpec>,
    by_name: HashMap<String, u32>,
    adapters: BTreeMap<u32, Adapter>,
    matrices: BTreeSet<u32>,
}

impl ParamLayout {
    /// The weights in order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Number of values in all weights of which `keep` holds.
    pub fn count_values(&self, keep: impl Fn(&ParamSpec) -> bool) -> usize {
        self.specs
            .iter()
            .filter(|spec| keep(spec))
            .map(|spec| spec.shape.iter().product::<usize>())
            .sum()
    }

    /// Position of the weight called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|index| *index as usize)
    }

    /// Position of the weight called `name`. Where a name may well be missing, [`find`](Self::find) does not look for the
    /// nearest.
    ///
    /// # Errors
    /// [`CoreError::Unknown`] with the nearest name, if one is near.
    pub fn position(&self, name: &str) -> Result<usize, CoreError> {
        self.find(name).ok_or_else(|| {
            let names = self.specs.iter().map(|spec| spec.name.as_str());
            CoreError::Unknown {
                name: name.into(),
                nearest: flow_registry::nearest(name, names).map(str::to_owned),
            }
        })
    }

    /// Whether the weight at `index` is the matrix of a linear layer, which a model reads in products only
    /// ([`LayoutBuilder::matrix`]).
    pub fn is_matrix(&self, index: usize) -> bool {
        u32::try_from(index).is_ok_and(|index| self.matrices.contains(&index))
    }

    /// The adapter of a linear weight.
    pub fn adapter(&self, weight: Handle<2>) -> Option<Adapter> {
        self.adapters.get(&weight.0).copied()
    }

    /// Whether any weight has an adapter.
    pub fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// The adapted weights with their adapters, in order.
    pub fn adapters(&self) -> impl Iterator<Item = (Handle<2>, Adapter)> + '_ {
        self.adapters
            .iter()
            .map(|(index, adapter)| (Handle(*index), *adapter))
    }

    /// Adds an adapter of `rank` to `weight`: `A` normal with deviation `1/rank`, `B` zero, so that it starts as
    /// the identity (Hu et al. 2021, arXiv:2106.09685). The factors are called `NAME.lora_A.weight` and
    /// `NAME.lora_B.weight`, as `peft` does, where the weight is `NAME.weight`.
    ///
    /// # Errors
    /// [`CoreError::Duplicate`] if it has one already.
    pub fn add_adapter(&mut self, weight: Handle<2>, rank: usize, alpha: f32) -> Result<(), CoreError> {
        let spec = &self.specs[weight.index()];
        let stem = spec.name.strip_suffix(".weight").unwrap_or(&spec.name).to_owned();
        let [output, input] = [spec.shape[0], spec.shape[1]];
        let rows = spec.rows;
        let factor = |name: &str, shape: [usize; 2], init| ParamSpec {
            name: format!("{stem}.{name}.weight"),
            shape: shape.to_vec(),
            init,
            kind: ParamKind::Adapter,
            decays: true,
            rows,
        };
        let down = self.push(factor("lora_A", [rank, input], Init::Normal(1.0 / rank as f32)))?;
        let up = self.push(factor("lora_B", [output, rank], Init::Zeros))?;
        let adapter = Adapter {
            down: Handle(down),
            up: Handle(up),
            scale: alpha / rank as f32,
        };
        self.adapters.insert(weight.0, adapter);
        Ok(())
    }

    fn push(&mut self, spec: ParamSpec) -> Result<u32, CoreError> {
        let index = self.specs.len() as u32;
        if self.by_name.insert(spec.name.clone(), index).is_some() {
            return Err(CoreError::Duplicate(spec.name));
        }
        self.specs.push(spec);
        Ok(index)
    }
}

/// Declares the weights of a model, with a name prefix that follows its structure.
#[derive(Debug)]
pub struct LayoutBuilder<'a> {
    layout: &'a mut ParamLayout,
    prefix: String,
    rows: Rows,
}

impl<'a> LayoutBuilder<'a> {
    /// A builder that adds to `layout`.
    pub fn new(layout: &'a mut ParamLayout) -> Self {
        Self {
            layout,
            prefix: String::new(),
            rows: Rows::default(),
        }
    }

    /// A builder for the part called `name`.
    pub fn under(&mut self, name: impl std::fmt::Display) -> LayoutBuilder<'_> {
        LayoutBuilder {
            prefix: format!("{}{name}.", self.prefix),
            layout: self.layout,
            rows: self.rows,
        }
    }

    /// A builder for weights of this part, and of parts under it, that are applied to `rows`.
    pub fn applied_to(&mut self, rows: Rows) -> LayoutBuilder<'_> {
        LayoutBuilder {
            prefix: self.prefix.clone(),
            layout: self.layout,
            rows,
        }
    }

    /// Declares a weight.
    ///
    /// # Panics
    /// If the name is taken: a bug of the model.
    pub fn param<const D: usize>(&mut self, name: &str, shape: [usize; D], init: Init) -> Handle<D> {
        self.declare(name, shape, init, ParamKind::Base)
    }

    /// Declares the matrix of a linear layer, `[out, in]`. A model reads it through [`Exec::linear`](crate::Exec::linear) and its
    /// like only, so it may be stored in another form than a tensor of numbers.
    ///
    /// # Panics
    /// As [`param`](Self::param).
    pub fn matrix(&mut self, name: &str, shape: [usize; 2], init: Init) -> Handle<2> {
        let handle = self.param(name, shape, init);
        self.layout.matrices.insert(handle.0);
        handle
    }

    /// Declares a constant that files may hold.
    ///
    /// # Panics
    /// As [`param`](Self::param).
    pub fn buffer<const D: usize>(&mut self, name: &str, shape: [usize; D], init: Init) -> Handle<D> {
        self.declare(name, shape, init, ParamKind::Buffer)
    }

    fn declare<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
        init: Init,
        kind: ParamKind,
    ) -> Handle<D> {
        let name = format!("{}{name}", self.prefix);
        let decays = D >= 2 && kind == ParamKind::Base;
        let spec = ParamSpec {
            name,
            shape: shape.to_vec(),
            init,
            kind,
            decays,
            rows: self.rows,
        };
        Handle(self.layout.push(spec).expect("a model declares each weight once"))
    }
}
