//! Exact reuse: what several rows or calls have in common is computed once. The bits are those of computing it each time.

mod store;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use flow_core::exec::{CallBody, DependsOn, Reusable, RowKey, RowsBody};
use flow_core::tensors::{is_tracked, select, select_rows, stacked};
use flow_core::{Exec, FlowModel, ModelInput, RawTensor, ReuseDriver, Stage};
use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::Hash;
use store::{Key, Period, Place, Store, Take};

/// What was not computed again in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reused {
    /// Rows of a part of the model.
    Part {
        /// Rows asked for.
        rows: u64,
        /// Rows that were computed.
        computed: u64,
        /// Bytes that the store holds.
        kept_bytes: u64,
    },
    /// Rows of a call of the whole model, whose inputs are those of other rows.
    Call {
        /// Step of the sampler.
        step: u32,
        /// Rows asked for.
        rows: u64,
        /// Rows that were computed.
        computed: u64,
    },
}

/// Called once per part that could have been reused, and once per call in which rows have equal inputs.
pub type OnReused = Box<dyn Fn(Reused) + Send + Sync>;

/// Answers for rows with equal inputs, and for the parts of a model that read no latent, in every call that belongs to no
/// training pass. Lives as long as the run.
///
/// A value is kept under the version of the weights, its place in the model, and the bytes of condition and noise level
/// that it was computed from; it goes when these weights do, and everything goes with the iteration and with an evaluation.
/// Beyond the limit in bytes nothing more is kept.
///
/// Threads that need the same value at the same time wait for the one that computes it, so what is computed does not depend
/// on their number.
pub struct ExactReuse {
    store: Store,
    on_reused: OnReused,
}

impl Debug for ExactReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactReuse")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl ExactReuse {
    /// With nothing kept, and never more than `limit_bytes`.
    pub fn new(limit_bytes: u64, on_reused: OnReused) -> Self {
        Self {
            store: Store::new(limit_bytes),
            on_reused,
        }
    }

    /// Bytes of what is kept.
    pub fn kept_bytes(&self) -> u64 {
        self.store.kept_bytes()
    }
}

/// The first row of each different key, and for each row which of them it is like.
fn distinct<K: Eq + Hash>(keys: &[K]) -> (Vec<usize>, Vec<usize>) {
    let (mut first, mut seen) = (Vec::new(), HashMap::new());
    let like = keys.iter().enumerate().map(|(row, key)| {
        *seen.entry(key).or_insert_with(|| {
            first.push(row);
            first.len() - 1
        })
    });
    let like = like.collect();
    (first, like)
}

/// What `part` reads of a row; `None` if that is not known.
fn read_by(part: Reusable, row: &RowKey) -> Option<RowKey> {
    let (sigma, condition) = (row.sigma, row.condition.clone());
    Some(match part.depends_on {
        DependsOn::Sigma => RowKey {
            sigma: Some(sigma?),
            ..RowKey::default()
        },
        DependsOn::Condition => RowKey {
            condition: Some(condition?),
            ..RowKey::default()
        },
        DependsOn::SigmaAndCondition => RowKey {
            sigma: Some(sigma?),
            condition: Some(condition?),
            latent: None,
        },
    })
}

/// The rows of `outputs`, each a list with one tensor `[1, …]` per output.
fn split(outputs: &[DispatchTensor], rows: usize) -> Vec<Vec<RawTensor>> {
    let of = |row: usize| outputs.iter().map(|output| select_rows(output, &[row])).collect();
    (0..rows).map(of).collect()
}

impl ReuseDriver for ExactReuse {
    fn name(&self) -> &str {
        "exact-reuse"
    }

    fn part(&self, exec: &Exec<'_>, part: Reusable, body: RowsBody<'_>) -> Vec<DispatchTensor> {
        let read: Option<Vec<RowKey>> = exec.rows().iter().map(|row| read_by(part, row)).collect();
        let read = read.unwrap_or_default();
        // A pass that trains must see what its gradients belong to.
        if read.is_empty() || exec.params().is_of_training() {
            return body(exec, None);
        }
        let place = Place {
            version: exec.params().version(),
            block: exec.site().map(|site| (site.stack.clone(), site.block)),
            name: part.name,
        };
        let call = exec.call();
        let period = Period {
            iteration: call.iteration,
            is_evaluation: call.stage == Stage::Evaluation,
        };
        self.store.enter(&place.version, period);
        let (first, like) = distinct(&read);
        let keys: Vec<Key> = (first.iter())
            .map(|row| Key {
                place: place.clone(),
                read: read[*row].clone(),
            })
            .collect();
        let mut values: Vec<Option<Vec<RawTensor>>> = vec![None; keys.len()];
        let mut computed = 0;
        // What this thread is first to ask for it computes, all at once; only then does it wait for others.
        let mut waits = false;
        while values.iter().any(Option::is_none) {
            let missing: Vec<usize> = (0..keys.len()).filter(|at| values[*at].is_none()).collect();
            let mut mine = Vec::new();
            for at in missing {
                match self.store.take(&keys[at], waits && mine.is_empty()) {
                    Take::Kept(kept) => values[at] = Some(kept),
                    Take::Mine(promise) => mine.push((at, promise)),
                    Take::Underway => {}
                }
            }
            waits = mine.is_empty();
            if waits {
                continue;
            }
            let rows: Vec<usize> = mine.iter().map(|(at, _)| first[*at]).collect();
            let everything = rows.len() == read.len();
            let outputs = if everything {
                body(exec, None)
            } else {
                body(&exec.on_rows(&rows), Some(&rows))
            };
            computed += rows.len();
            if outputs.iter().any(is_tracked) {
                // Of inputs that are differentiated; nothing of it may be kept.
                return if everything { outputs } else { body(exec, None) };
            }
            for ((at, promise), row) in mine.into_iter().zip(split(&outputs, rows.len())) {
                values[at] = Some(row.clone());
                promise.keep(row);
            }
            if everything {
                self.tell_part(read.len(), computed);
                return outputs;
            }
        }
        self.tell_part(read.len(), computed);
        let values: Vec<Vec<RawTensor>> = values.into_iter().flatten().collect();
        let outputs = values[0].len();
        let same_order = like.iter().copied().eq(0..keys.len());
        (0..outputs)
            .map(|output| {
                let distinct = stacked(values.iter().map(|row| row[output].clone()).collect());
                if same_order {
                    distinct
                } else {
                    select_rows(&distinct, &like)
                }
            })
            .collect()
    }

    fn velocity(
        &self,
        exec: &Exec<'_>,
        _: &dyn FlowModel,
        input: ModelInput,
        compute: CallBody<'_>,
    ) -> Tensor<2> {
        let rows = exec.rows();
        let known = |row: &RowKey| row.latent.is_some() && row.sigma.is_some() && row.condition.is_some();
        if rows.is_empty() || !rows.iter().all(known) || exec.params().is_of_training() {
            return compute(exec, input);
        }
        let (first, like) = distinct(rows);
        if first.len() == rows.len() {
            return compute(exec, input);
        }
        let velocity = compute(&exec.on_rows(&first), input.rows(&first));
        (self.on_reused)(Reused::Call {
            step: exec.call().step,
            rows: rows.len() as u64,
            computed: first.len() as u64,
        });
        select(&velocity, &like)
    }
}

impl ExactReuse {
    fn tell_part(&self, rows: usize, computed: usize) {
        (self.on_reused)(Reused::Part {
            rows: rows as u64,
            computed: computed as u64,
            kept_bytes: self.store.kept_bytes(),
        });
    }
}
