//! First-block cache: where the first block changes a sample as it did before, so do the others.
//!
//! With `H_i` the tokens after block `i`, `r = H_1 - H_0`, and `r_ref` that of the last step whose blocks were computed:
//! a step is answered if `m|r - r_ref| <= threshold · m|r_ref|`, with `m` the mean of absolute values, and its result is
//! `H_1 + (H_L - H_1)` with the difference of that computed step (diffusers `hooks/first_block_cache.py`; ParaAttention).
//! Unlike there, the decision is each sample's and branch's own, and a value that is not a number means computing.

use crate::LaneStore;
use burn::backend::{Dispatch, DispatchTensor, ops::FloatTensorOps};
use flow_core::cpu::{rows, to_host};
use flow_core::exec::Stack;
use flow_core::tensors::is_tracked;
use flow_core::{Exec, Lane, Plain, StackDriver};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Mutex, PoisonError};

/// When a step may be answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstBlockRule {
    /// Largest relative change of the first block's residual, above 0.
    pub threshold: f64,
    /// Steps at the start that are computed.
    pub warmup_steps: u32,
    /// Most steps in a row that are answered; 0 for any number.
    pub max_consecutive: u32,
    /// Whether the last step is computed.
    pub compute_last: bool,
    /// Whether stochastic steps are computed, and what is kept is dropped there.
    pub outside_sde_window: bool,
}

/// Called with the number of blocks that were not computed, once per answered row.
pub type OnSkip = Box<dyn Fn(u64) + Send + Sync>;

/// The driver. Lives as long as one rollout.
pub struct FirstBlock {
    rule: FirstBlockRule,
    on_skip: OnSkip,
    /// By name of the stack.
    kept: Mutex<BTreeMap<String, LaneStore<Kept>>>,
}

/// Of the last computed step of a lane.
#[derive(Clone, Debug)]
struct Kept {
    /// `r_ref`.
    residual: Vec<f32>,
    /// `H_L - H_1` of every carried tensor, `[1, …]`.
    tail: Vec<Plain>,
    /// Steps answered since.
    answered: u32,
}

impl Debug for FirstBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstBlock")
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

impl FirstBlock {
    /// A driver with nothing kept.
    pub fn new(rule: FirstBlockRule, on_skip: OnSkip) -> Self {
        Self {
            rule,
            on_skip,
            kept: Mutex::default(),
        }
    }

    /// The state of a lane if this step may be answered from it.
    fn answer(&self, exec: &Exec<'_>, stack: &str, lane: Lane, residual: &[f32]) -> Option<Vec<Plain>> {
        let call = exec.call();
        let rule = &self.rule;
        let last = call.step + 1 == call.steps;
        if call.step < rule.warmup_steps || (last && rule.compute_last) {
            return None;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let store = kept.get_mut(stack)?;
        let (from, state) = store.get(call.iteration, lane, 0, call.step)?;
        let allowed = rule.max_consecutive == 0 || state.answered < rule.max_consecutive;
        let near = relative_change(residual, &state.residual) <= rule.threshold;
        if !(allowed && near) {
            return None;
        }
        let mut state = state.clone();
        state.answered += 1;
        let tail = state.tail.clone();
        store.put(call.iteration, lane, 0, from, state);
        Some(tail)
    }

    fn keep(&self, exec: &Exec<'_>, stack: &str, lane: Lane, state: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let store = kept.entry(stack.to_owned()).or_default();
        store.put(exec.call().iteration, lane, 0, exec.call().step, state);
    }

    fn forget(&self, stack: &str, lanes: &[Lane]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = kept.get_mut(stack) {
            lanes.iter().for_each(|lane| store.forget(*lane));
        }
    }
}

/// `m|a - b| / m|b|`, summed in f64 in order; not a number if both are 0.
fn relative_change(a: &[f32], b: &[f32]) -> f64 {
    let (mut change, mut size) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        change += f64::from((a - b).abs());
        size += f64::from(b.abs());
    }
    change / size
}

impl StackDriver for FirstBlock {
    fn name(&self) -> &str {
        "first-block"
    }

    fn run(
        &self,
        exec: &Exec<'_>,
        stack: &dyn Stack,
        carried: Vec<DispatchTensor>,
        shared: Vec<DispatchTensor>,
    ) -> Vec<DispatchTensor> {
        let (call, lanes) = (exec.call(), exec.call().lanes.clone());
        let tracked = carried.iter().chain(&shared).any(is_tracked);
        if lanes.is_empty() || stack.len() < 2 || tracked {
            return stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        }
        if self.rule.outside_sde_window && call.stochastic {
            self.forget(stack.name(), &lanes);
            return stack.run_blocks(exec, 0..stack.len(), carried, &shared);
        }
        let before = carried[0].clone();
        let head = stack.run_block(exec, 0, carried, shared.clone());
        let residual = to_host(&Dispatch::float_sub(head[0].clone(), before));
        let values = residual.len() / lanes.len();
        let residual_of = |row: usize| &residual[row * values..(row + 1) * values];
        let answers: Vec<Option<Vec<Plain>>> = (0..lanes.len())
            .map(|row| self.answer(exec, stack.name(), lanes[row], residual_of(row)))
            .collect();
        let computed: Vec<usize> = (0..lanes.len()).filter(|row| answers[*row].is_none()).collect();
        let answered = lanes.len() - computed.len();
        if answered > 0 {
            (self.on_skip)(answered as u64 * (stack.len() as u64 - 1));
        }

        // Of what is computed: the results, and what to keep.
        let mut results: Vec<DispatchTensor> = Vec::new();
        if !computed.is_empty() {
            let some = exec.on_lanes(computed.iter().map(|row| lanes[*row]).collect());
            let gather = |tensors: &[DispatchTensor]| -> Vec<DispatchTensor> {
                tensors.iter().map(|tensor| rows(tensor, &computed)).collect()
            };
            let head = gather(&head);
            results = stack.run_blocks(&some, 1..stack.len(), head.clone(), &gather(&shared));
            let tails: Vec<DispatchTensor> = (results.iter().zip(head))
                .map(|(result, head)| Dispatch::float_sub(result.clone(), head))
                .collect();
            for (index, row) in computed.iter().enumerate() {
                let state = Kept {
                    residual: residual_of(*row).to_vec(),
                    tail: tails.iter().map(|tail| rows(tail, &[index])).collect(),
                    answered: 0,
                };
                self.keep(exec, stack.name(), lanes[*row], state);
            }
        }
        if answered == 0 {
            return results;
        }
        (head.iter().enumerate())
            .map(|(tensor, head)| {
                let parts = (0..lanes.len()).map(|row| match &answers[row] {
                    Some(tail) => Dispatch::float_add(rows(head, &[row]), tail[tensor].clone()),
                    None => {
                        let index = computed
                            .binary_search(&row)
                            .expect("a row is computed or answered");
                        rows(&results[tensor], &[index])
                    }
                });
                Dispatch::float_cat(parts.collect(), 0)
            })
            .collect()
    }
}
