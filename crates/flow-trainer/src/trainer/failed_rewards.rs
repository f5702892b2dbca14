//! Rewards that fail in the middle of a run. All ranks learn of it, and what the run had before is kept in a checkpoint.

use super::Session;
use crate::algorithm::Algorithm;
use crate::distributed::gathered;
use crate::error::TrainError;
use crate::observer::Observer;
use flow_exchange::Exchange;
use flow_rewards::RewardError;

/// What the rewards of this rank gave, if those of all ranks gave scores. All ranks call this, and if the rewards of one failed, all
/// have the same error: so all of them can save what they have.
///
/// # Errors
/// [`TrainError::Unscored`] with the words of the first rank whose rewards failed.
pub(super) fn of_all_ranks<T>(
    exchange: &dyn Exchange,
    mine: Result<T, RewardError>,
) -> Result<T, TrainError> {
    let own = mine.as_ref().err().map(ToString::to_string);
    let all: Vec<Option<String>> = gathered(exchange, &own)?;
    let mut failed = all.into_iter().enumerate();
    let failed = failed.find_map(|(rank, problem)| Some((rank, problem?)));
    match (failed, mine) {
        (Some((rank, problem)), _) if exchange.world().is_several() => Err(TrainError::Unscored {
            problem: format!("process {rank}: {problem}"),
        }),
        (Some((_, problem)), _) => Err(TrainError::Unscored { problem }),
        (None, mine) => Ok(mine?),
    }
}

/// `error`; of rewards that one rank alone asks in the middle of a run, as [`of_all_ranks`] has it.
pub(super) fn of_this_rank(error: TrainError) -> TrainError {
    match error {
        TrainError::Reward(error) => TrainError::Unscored {
            problem: error.to_string(),
        },
        other => other,
    }
}

impl<A: Algorithm> Session<A> {
    /// Evaluates. If rewards fail, the checkpoint that is left says that this evaluation is still to be done.
    pub(super) fn evaluate_or_save(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        self.evaluation_due = true;
        if let Err(error) = self.evaluate(observer) {
            return Err(self.saved_before(error, observer));
        }
        self.evaluation_due = false;
        Ok(())
    }

    /// `error`. If it says that rewards failed, which nothing was learnt from yet, the state is saved unless it is already; before the
    /// first iteration there is nothing to save.
    pub(super) fn saved_before(&mut self, error: TrainError, observer: &mut dyn Observer) -> TrainError {
        let iteration = self.parts.state.iteration;
        if !matches!(error, TrainError::Unscored { .. }) || iteration == 0 {
            return error;
        }
        if self.saved_at != Some(iteration) {
            let saved = self.save();
            // A process that ends makes the others end: none may before the first one has written its file. Where another has ended by
            // now, the file is written all the same.
            let _ = self.parts.distribution.any(false);
            if let Err(problem) = saved {
                // Why the run stops is what a person has to know first, and the error says that.
                observer.notice(&format!(
                    "the state after iteration {iteration} could not be saved: {problem}"
                ));
                return error;
            }
        }
        observer.notice(&format!(
            "rewards failed; the state after iteration {iteration} is saved, and `--resume latest` goes on from there"
        ));
        error
    }
}
