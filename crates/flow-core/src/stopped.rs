//! Why a computation stopped from within.
//!
//! A model's code returns tensors, not errors, so what cannot be computed unwinds. Whoever starts a computation on behalf
//! of a user ([`caught`]) gets the reason back as an error: of things that a backend or a device declines, in the words of
//! [`Stopped`]; of a panic, which is a defect, its message.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Why a computation stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// The plan's attention backend does not serve a call of the model.
    #[error(
        "the attention backend `{backend}` does not serve a call of the model: {why}. Name another backend \
         (`flow-train list attention`), or remove the entry `attention_backend`"
    )]
    AttentionDeclined {
        /// Name of the backend.
        backend: String,
        /// The reason, without a full stop.
        why: String,
    },
    /// A device that cannot go on after it failed to record or to replay a call.
    #[error(
        "`graph_capture` could not record or replay a call of the model `{model}`, and the device lost what the call \
         was given: {why}. Remove `graph_capture` from `acceleration`, or lower `sampling.micro_batch`, and resume"
    )]
    RecordingLost {
        /// Architecture of the model.
        model: String,
        /// The device's reason.
        why: String,
    },
    /// Prompts that were encoded beforehand, and cannot be read any more.
    #[error("the encoded prompts cannot be read: {why}")]
    Prompts {
        /// Which, and what to do.
        why: String,
    },
    /// A process that took part in the computation and does not any more.
    #[error("{why}")]
    RankLost {
        /// Which, and what to do.
        why: String,
    },
    /// A panic: a defect, or memory that ran out.
    #[error("a computation panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
}

impl Stopped {
    /// Whether it is a defect of the program rather than something that was declined.
    pub fn is_defect(&self) -> bool {
        matches!(self, Self::Panicked { .. })
    }

    /// Unwinds to who started the computation. No message is printed on the way.
    pub fn stop(self) -> ! {
        resume_unwind(Box::new(self))
    }

    fn of(payload: Box<dyn Any + Send>) -> Self {
        match payload.downcast::<Self>() {
            Ok(stopped) => *stopped,
            Err(payload) => {
                let message = (payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .or_else(|| payload.downcast_ref::<String>().cloned());
                Self::Panicked {
                    message: message.unwrap_or_else(|| "it left no message".into()),
                }
            }
        }
    }
}

/// What `compute` gives, or why it stopped. State that `compute` changed is as far as it came: whoever goes on with it must
/// be right with that, as a run is that ends here.
///
/// # Errors
/// [`Stopped`], also of a panic.
pub fn caught<T>(compute: impl FnOnce() -> T) -> Result<T, Stopped> {
    catch_unwind(AssertUnwindSafe(compute)).map_err(Stopped::of)
}
