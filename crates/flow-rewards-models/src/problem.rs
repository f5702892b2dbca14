//! What can be wrong with a reward before it scores, and with a batch.

use flow_core::CoreError;
use flow_models::ModelError;
use flow_registry::Refusal;
use flow_rewards::RewardError;
use flow_text_encoder::EncoderError;
use flow_tokenizer::TokenizerError;

/// Why a reward cannot be built, without its name.
#[derive(Debug)]
pub enum BuildError {
    /// A parameter, with what is allowed.
    Params(Refusal),
    /// Files.
    Files(Refusal),
}

impl BuildError {
    /// With the reward's name.
    pub fn of(self, reward: &str) -> RewardError {
        let reward = reward.to_owned();
        match self {
            Self::Params(problem) => RewardError::Params { reward, problem },
            Self::Files(problem) => RewardError::Network { reward, problem },
        }
    }
}

impl From<Refusal> for BuildError {
    fn from(problem: Refusal) -> Self {
        Self::Files(problem)
    }
}

macro_rules! told_as_it_is {
    ($($error:ty),*) => {$(
        impl From<$error> for BuildError {
            fn from(error: $error) -> Self {
                Self::Files(error.to_string().into())
            }
        }
    )*};
}

told_as_it_is!(EncoderError, ModelError, TokenizerError, CoreError);
