//! The weights that are not trained, and whether a checkpoint has to hold them.
//!
//! A run of adapters trains some megabytes and reads gigabytes. Where a file gives the weights that it reads, a checkpoint holds the
//! hash of that file in their place.

use crate::absent_file::AbsentFile;
use crate::description::Description;
use flow_core::ParamLayout;
use flow_report::ContentHash;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The key of the config that names the weights which adapters adapt.
const WEIGHTS: &str = "model.weights";

/// Where the weights that are not trained can be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrozenWeights {
    /// From the file or folder that `model.weights` names, whose contents have this hash. Checkpoints leave them out.
    OfFile(ContentHash),
    /// From checkpoints alone: there is no file, nobody looked at what it holds, or all weights are trained.
    InCheckpoint,
}

impl FrozenWeights {
    /// Of a run of weights with `layout`, which were loaded as `description` says.
    ///
    /// Weights that were drawn from a seed are held by checkpoints: another version may draw others.
    pub fn of(description: &Description, layout: &ParamLayout) -> Self {
        match Self::of_file(description) {
            Some(hash) if layout.has_adapters() => Self::OfFile(hash),
            _ => Self::InCheckpoint,
        }
    }

    /// What `model.weights` holds, as a description has it.
    pub(crate) fn of_file(description: &Description) -> Option<ContentHash> {
        description.content(WEIGHTS)
    }

    /// What a checkpoint says of them.
    pub(crate) fn saved(self) -> FrozenSaved {
        match self {
            Self::OfFile(hash) => FrozenSaved::LeftOut(hash),
            Self::InCheckpoint => FrozenSaved::Held,
        }
    }

    /// Whether a checkpoint holds a weight that is, or is not, `trained`.
    pub(crate) fn is_held(self, trained: bool) -> bool {
        trained || self == Self::InCheckpoint
    }
}

/// What a checkpoint says of the weights that are not trained. Older ones say nothing, and hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FrozenSaved {
    /// They are those of the file with this hash, and not in the checkpoint.
    LeftOut(ContentHash),
    /// They are in the checkpoint.
    Held,
}

impl FrozenSaved {
    /// Where a run takes them from that goes on from a checkpoint with `loaded` weights. `saved` is what the checkpoint says, and
    /// `described` the file that it was begun with; `absent` are files that are not there.
    ///
    /// # Errors
    /// What is wrong and what helps, if the checkpoint leaves them out and they are not those that were loaded.
    pub fn settle(
        saved: Option<Self>,
        described: Option<ContentHash>,
        loaded: FrozenWeights,
        absent: &[AbsentFile],
    ) -> Result<FrozenWeights, (String, String)> {
        let FrozenWeights::OfFile(file) = loaded else {
            return match saved {
                Some(Self::LeftOut(saved)) => Err(refused(saved, loaded, absent)),
                // They are in the checkpoint, and what was loaded is not known.
                Some(Self::Held) | None => Ok(FrozenWeights::InCheckpoint),
            };
        };
        match saved {
            Some(Self::LeftOut(saved)) if saved == file => Ok(loaded),
            Some(Self::LeftOut(saved)) => Err(refused(saved, loaded, absent)),
            // An older checkpoint holds what that file gave.
            None if described == Some(file) => Ok(loaded),
            Some(Self::Held) | None => Ok(FrozenWeights::InCheckpoint),
        }
    }
}

/// Why a checkpoint of adapters alone cannot be gone on from, and what helps.
fn refused(file: ContentHash, loaded: FrozenWeights, absent: &[AbsentFile]) -> (String, String) {
    let holds = format!(
        "it holds the adapters alone; the weights that they adapt are those with BLAKE3 {}… that `{WEIGHTS}` named",
        file.short()
    );
    let mend = "Any copy of that file or folder will do: put it back, or name it where it lies now, with `model.weights`, or with \
                `model.path` if it is of a diffusers folder";
    let gone = absent
        .iter()
        .map(AbsentFile::named)
        .find(|(key, _)| *key == WEIGHTS);
    let problem = match (gone, loaded) {
        (Some((_, path)), _) => format!("{holds}, and there is nothing at `{}`", shown(path)),
        (None, FrozenWeights::OfFile(other)) => {
            format!("{holds}, and what it names now has {}…", other.short())
        }
        (None, FrozenWeights::InCheckpoint) => {
            return (
                format!("{holds}, and nobody looked at what the files of this run hold"),
                "Assemble the run from the config alone (`setup::trainer`), which looks at them".into(),
            );
        }
    };
    (problem, mend.into())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
