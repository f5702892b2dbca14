//! The parts of a model that an accelerator may answer for: regions, attention layers, and what depends on little of a row.

use crate::model::RegionKind;
use std::fmt;
use std::sync::Arc;

/// What a region does besides computing its outputs from its inputs and weights.
///
/// Numbers drawn by a counter ([`crate::rng`]) are a function of their place, so drawing them is pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing: it gives the same outputs whenever it runs.
    #[default]
    Pure,
    /// It draws numbers from a generator with state.
    Random,
    /// It takes part in a collective operation of several processes.
    Collective,
    /// It reads values back to the host, which waits for the device.
    HostReadBack,
}

impl Effect {
    /// Whether the region may run again in backward. What is not pure runs once.
    pub fn may_replay(self) -> bool {
        self == Self::Pure
    }
}

/// Where a region stands in the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Name of the stack.
    pub stack: Arc<str>,
    /// Index of the block.
    pub block: usize,
    /// Kind of the region.
    pub kind: RegionKind,
    /// What it does besides computing.
    pub effect: Effect,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}].{:?}", self.stack, self.block, self.kind)
    }
}

/// What the queries of an attention layer look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttentionKind {
    /// The tokens of the same image or frame, joint with the text or not.
    Spatial,
    /// The same place in other frames.
    Temporal,
    /// The condition only.
    Cross,
}

/// An attention layer of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionLayer {
    /// Its block.
    pub site: Site,
    /// Its name within the block, unique there.
    pub name: &'static str,
    /// What it looks at.
    pub kind: AttentionKind,
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
