//! The shape of an iteration: prompts, groups, micro-batches and updates, and which prompts come when.
//!
//! Samples of an iteration are numbered group by group: sample `i` is member `i % group_size` of group
//! `i / group_size`. Numbers that do not divide are an error that names the nearest ones that do; nothing is rounded
//! (Flow-Factory rounds the number of prompts up, `hparams/args.py:220`).

use std::fmt;
use std::ops::Range;

use crate::geometry_history::GeometryHistory;
use flow_core::rng::{Purpose, Stream};
use serde::{Deserialize, Serialize};

/// The numbers a user chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeometryRequest {
    /// Prompts per iteration, each the base of one group.
    pub prompts_per_step: usize,
    /// Samples per prompt.
    pub group_size: usize,
    /// Samples per forward and backward pass.
    pub micro_batch: usize,
    /// Micro-batches whose gradients make one optimizer update; 0 makes one update of all.
    pub gradient_accumulation: usize,
}

/// One rule that the numbers break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeometryProblem {
    /// The rule with the numbers put in.
    pub rule: String,
    /// Single changes, each of which satisfies this rule, nearest first: `(field, value)`.
    pub nearest: Vec<(&'static str, usize)>,
}

/// Every rule that the numbers break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct GeometryError {
    /// The broken rules, at least one.
    pub problems: Vec<GeometryProblem>,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the batch geometry is impossible:")?;
        for (number, GeometryProblem { rule, nearest }) in self.problems.iter().enumerate() {
            write!(f, "\n  {}. {rule}", number + 1)?;
            for (position, (field, value)) in nearest.iter().enumerate() {
                write!(
                    f,
                    "{}{field} = {value}",
                    if position == 0 { "; nearest: " } else { " or " }
                )?;
            }
        }
        Ok(())
    }
}

/// A geometry in which everything divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BatchGeometry {
    prompts: usize,
    group_size: usize,
    micro_batch: usize,
    accumulated: usize,
    /// Candidates of each group, of which `group_size` are trained on; as many where nothing is explored.
    #[serde(skip)]
    candidates: usize,
}

impl BatchGeometry {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If a number is 0, the product of prompts and group size overflows or is no multiple of the micro-batch, or the
    /// number of micro-batches is no multiple of the accumulated ones. Numbers that are 0 are reported together.
    pub fn new(request: GeometryRequest) -> Result<Self, GeometryError> {
        let GeometryRequest {
            prompts_per_step: prompts,
            group_size,
            micro_batch,
            gradient_accumulation,
        } = request;
        let fields = [
            ("prompts_per_step", prompts),
            ("group_size", group_size),
            ("micro_batch", micro_batch),
        ];
        let zeros = fields.into_iter().filter(|&(_, value)| value == 0);
        let mut problems: Vec<GeometryProblem> = zeros
            .map(|(field, _)| GeometryProblem {
                rule: format!("{field}(0) must be at least 1"),
                nearest: vec![(field, 1)],
            })
            .collect();
        let samples = prompts
            .checked_mul(group_size)
            .filter(|&samples| samples <= MOST_SAMPLES);
        if samples.is_none() {
            problems.push(GeometryProblem {
                rule: format!(
                    "prompts_per_step({prompts}) * group_size({group_size}) must be at most {MOST_SAMPLES} samples"
                ),
                nearest: vec![("prompts_per_step", (MOST_SAMPLES / group_size.max(1)).max(1))],
            });
        }
        let (Some(samples), true) = (samples, problems.is_empty()) else {
            return Err(GeometryError { problems });
        };
        if !samples.is_multiple_of(micro_batch) {
            let mut nearest = near_multiples(
                "prompts_per_step",
                prompts,
                micro_batch / gcd(micro_batch, group_size),
            );
            nearest.extend(near_multiples(
                "group_size",
                group_size,
                micro_batch / gcd(micro_batch, prompts),
            ));
            nearest.extend(near_divisors("micro_batch", micro_batch, samples));
            let rule = format!(
                "prompts_per_step({prompts}) * group_size({group_size}) = {samples} samples must be a multiple of \
                 micro_batch({micro_batch})"
            );
            return Err(GeometryError {
                problems: vec![GeometryProblem { rule, nearest }],
            });
        }
        let micro_batches = samples / micro_batch;
        let accumulated = if gradient_accumulation == 0 {
            micro_batches
        } else {
            gradient_accumulation
        };
        if !micro_batches.is_multiple_of(accumulated) {
            let mut nearest = near_divisors("gradient_accumulation", accumulated, micro_batches);
            let update = micro_batch.saturating_mul(accumulated);
            nearest.extend(near_multiples(
                "prompts_per_step",
                prompts,
                update / gcd(update, group_size),
            ));
            let rule = format!(
                "{samples} samples / micro_batch({micro_batch}) = {micro_batches} micro-batches must be a multiple of \
                 gradient_accumulation({accumulated})"
            );
            return Err(GeometryError {
                problems: vec![GeometryProblem { rule, nearest }],
            });
        }
        Ok(Self {
            prompts,
            group_size,
            micro_batch,
            accumulated,
            candidates: group_size,
        })
    }

    /// The same with `candidates` explored in each group, of which the group is chosen.
    ///
    /// # Errors
    /// If there are no more candidates than a group holds, too many, or they are not whole micro-batches.
    pub fn with_candidates(self, candidates: usize) -> Result<Self, GeometryError> {
        let Self {
            prompts,
            group_size,
            micro_batch,
            ..
        } = self;
        let problem = |rule: String, nearest| {
            Err(GeometryError {
                problems: vec![GeometryProblem { rule, nearest }],
            })
        };
        if candidates <= group_size {
            return problem(
                format!(
                    "candidates({candidates}) must be more than group_size({group_size}), how many of them are kept"
                ),
                near_multiples("candidates", 2 * group_size, group_size),
            );
        }
        let all = prompts.checked_mul(candidates).filter(|all| *all <= MOST_SAMPLES);
        let Some(all) = all else {
            return problem(
                format!(
                    "prompts_per_step({prompts}) * candidates({candidates}) must be at most {MOST_SAMPLES}"
                ),
                vec![("candidates", MOST_SAMPLES / prompts)],
            );
        };
        if !all.is_multiple_of(micro_batch) {
            let unit = micro_batch / gcd(micro_batch, prompts);
            let nearest = near_multiples("candidates", candidates, unit);
            return problem(
                format!(
                    "prompts_per_step({prompts}) * candidates({candidates}) = {all} candidates must be a multiple of \
                     micro_batch({micro_batch})"
                ),
                nearest
                    .into_iter()
                    .filter(|(_, value)| *value > group_size)
                    .collect(),
            );
        }
        Ok(Self { candidates, ..self })
    }

    /// The geometry of `[sampling]` and `[optimizer]`.
    ///
    /// # Errors
    /// As [`BatchGeometry::new`].
    pub fn from_config(
        sampling: &flow_config::SamplingConfig,
        optimizer: &flow_config::OptimizerConfig,
    ) -> Result<Self, GeometryError> {
        Self::new(GeometryRequest {
            prompts_per_step: sampling.prompts_per_step,
            group_size: sampling.group_size,
            micro_batch: sampling.micro_batch,
            gradient_accumulation: optimizer.gradient_accumulation,
        })
    }

    /// Prompts, and hence groups, per iteration.
    pub fn prompts(&self) -> usize {
        self.prompts
    }

    /// Samples per group.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// Candidates per group, which have addresses of their own; the samples of a group where nothing is explored.
    pub fn candidates(&self) -> usize {
        self.candidates
    }

    /// Micro-batches of candidates per iteration.
    pub fn candidate_micro_batches(&self) -> usize {
        self.prompts * self.candidates / self.micro_batch
    }

    /// The candidate that a sample is where nothing was chosen: the group's first ones.
    pub fn first_candidate(&self, sample: usize) -> usize {
        let (group, member) = self.slot(sample);
        group * self.candidates + member
    }

    /// Samples per micro-batch.
    pub fn micro_batch_size(&self) -> usize {
        self.micro_batch
    }

    /// Samples per iteration.
    pub fn samples(&self) -> usize {
        self.prompts * self.group_size
    }

    /// Micro-batches per iteration.
    pub fn micro_batches(&self) -> usize {
        self.samples() / self.micro_batch
    }

    /// Optimizer updates per pass over the samples.
    pub fn updates(&self) -> usize {
        self.micro_batches() / self.accumulated
    }

    /// Micro-batches whose gradients make one update.
    pub fn micro_batches_per_update(&self) -> usize {
        self.accumulated
    }

    /// The samples of each micro-batch, in order.
    pub fn micro_batch_samples(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = self.micro_batch;
        (0..self.micro_batches()).map(move |index| index * size..(index + 1) * size)
    }

    /// The micro-batches of each update, in order.
    pub fn update_micro_batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let size = self.accumulated;
        (0..self.updates()).map(move |index| index * size..(index + 1) * size)
    }

    /// `(group, member)` of a sample within its iteration.
    pub fn slot(&self, sample: usize) -> (usize, usize) {
        (sample / self.group_size, sample % self.group_size)
    }
}

/// Limit on the samples of an iteration; far above any memory, low enough that no product of the geometry overflows.
const MOST_SAMPLES: usize = 1 << 31;

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The multiples of `unit` next to `value`, nearest first, none of them 0.
fn near_multiples(field: &'static str, value: usize, unit: usize) -> Vec<(&'static str, usize)> {
    let below = value / unit * unit;
    let mut found: Vec<_> = [Some(below), below.checked_add(unit)]
        .into_iter()
        .flatten()
        .filter(|candidate| (1..=MOST_SAMPLES).contains(candidate))
        .map(|candidate| (field, candidate))
        .collect();
    found.sort_by_key(|&(_, candidate)| candidate.abs_diff(value));
    found
}

/// The divisors of `number` next to `value`, nearest first.
fn near_divisors(field: &'static str, value: usize, number: usize) -> Vec<(&'static str, usize)> {
    let small = (1..)
        .take_while(|divisor| divisor * divisor <= number)
        .filter(|&divisor| number.is_multiple_of(divisor));
    let all: Vec<usize> = small.flat_map(|divisor| [divisor, number / divisor]).collect();
    let below = all.iter().copied().filter(|&divisor| divisor < value).max();
    let above = all.iter().copied().filter(|&divisor| divisor > value).min();
    let mut found: Vec<_> = [below, above]
        .into_iter()
        .flatten()
        .map(|divisor| (field, divisor))
        .collect();
    found.sort_by_key(|&(_, candidate)| candidate.abs_diff(value));
    found
}

/// One prompt of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptDraw {
    /// Index into the prompts of the dataset.
    pub prompt: usize,
    /// How often the whole dataset has been gone through before.
    pub epoch: u64,
    /// Id of the group, unique in the run: how many came before it. Two groups never share an
    /// id, even if they share a prompt.
    pub group: u64,
}

/// Deals out prompts without replacement: every prompt comes once before any comes again, in an order shuffled anew
/// for every epoch. A pure function of seed, iteration and the geometries so far, so a resumed run goes on where it was, also with
/// another number of prompts.
///
/// An iteration may reach from one epoch into the next. The next epoch's order is then adjusted so that an iteration
/// never holds a prompt twice.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptSampler {
    prompts: usize,
    history: GeometryHistory,
    stream: Stream,
}

impl PromptSampler {
    /// A sampler of `per_iteration` different prompts out of `prompts`.
    ///
    /// # Errors
    /// If either is 0, or there are fewer prompts than an iteration takes.
    pub fn new(prompts: usize, per_iteration: usize, seed: u64) -> Result<Self, GeometryError> {
        let problem = |rule: String, field: &'static str, value: usize| GeometryError {
            problems: vec![GeometryProblem {
                rule,
                nearest: vec![(field, value)],
            }],
        };
        if per_iteration > prompts && prompts > 0 {
            let rule = format!(
                "prompts_per_step({per_iteration}) must be at most the number of training prompts, {prompts}, \
                 unless repeats are allowed"
            );
            return Err(problem(rule, "prompts_per_step", prompts));
        }
        Self::with_repeats(prompts, per_iteration, seed)
    }

    /// As [`PromptSampler::new`], but an iteration may be larger than the dataset. It then holds prompts more than
    /// once, in separate groups.
    ///
    /// # Errors
    /// If either number is 0.
    pub fn with_repeats(prompts: usize, per_iteration: usize, seed: u64) -> Result<Self, GeometryError> {
        let zero = |rule: &str, nearest: Vec<(&'static str, usize)>| GeometryError {
            problems: vec![GeometryProblem {
                rule: rule.into(),
                nearest,
            }],
        };
        if prompts == 0 {
            return Err(zero(
                "the dataset has no training prompts; at least 1 is needed",
                vec![],
            ));
        }
        if per_iteration == 0 {
            return Err(zero(
                "prompts_per_step(0) must be at least 1",
                vec![("prompts_per_step", 1)],
            ));
        }
        Ok(Self {
            prompts,
            history: GeometryHistory::of_prompts(per_iteration, 1),
            stream: Stream::new(seed, Purpose::Prompts),
        })
    }

    /// The sampler of a run with these geometries.
    #[must_use]
    pub fn following(mut self, history: GeometryHistory) -> Self {
        self.history = history;
        self
    }

    /// The geometries of the run, which give samples their addresses.
    pub fn history(&self) -> &GeometryHistory {
        &self.history
    }

    /// The prompts of an iteration, in order.
    pub fn draw(&self, iteration: u64) -> Vec<PromptDraw> {
        let size = self.prompts as u64;
        let first = self.history.first_group(iteration);
        let mut order: Option<(u64, Vec<usize>)> = None;
        (first..first + self.history.prompts(iteration))
            .map(|group| {
                let epoch = group / size;
                if order.as_ref().is_none_or(|(known, _)| *known != epoch) {
                    order = Some((epoch, self.order(epoch)));
                }
                let prompt = order
                    .as_ref()
                    .map_or(0, |(_, order)| order[(group % size) as usize]);
                PromptDraw { prompt, epoch, group }
            })
            .collect()
    }

    /// The order of an epoch. Prompts at its head that the iteration reaching in already holds are exchanged with the
    /// first later ones that it does not hold.
    fn order(&self, epoch: u64) -> Vec<usize> {
        let size = self.prompts as u64;
        // Of the iteration that reaches into an epoch: its groups before and in it, if there are any before. One that is larger
        // than the data set holds prompts more than once anyway.
        let reach = |epoch: u64| {
            let (held, per_iteration) = self.history.place_of_group(epoch * size);
            (held > 0 && per_iteration <= size).then(|| (held as usize, (per_iteration - held) as usize))
        };
        // Adjusting needs the end of the epoch before, as adjusted. Go back to an epoch that begins with an iteration,
        // or whose end no adjustment reaches, which is one if the data set is twice as large as any iteration.
        let mut start = epoch;
        while start > 0 && reach(start).is_some() {
            start -= 1;
            if size >= 2 * self.history.most_prompts() {
                break;
            }
        }
        let mut order = self.shuffled(start);
        for next in start + 1..=epoch {
            let Some((held, head)) = reach(next) else {
                order = self.shuffled(next);
                continue;
            };
            let mut in_iteration = vec![false; self.prompts];
            for &prompt in &order[self.prompts - held..] {
                in_iteration[prompt] = true;
            }
            order = self.shuffled(next);
            let mut spare = head;
            for position in 0..head {
                if in_iteration[order[position]] {
                    while in_iteration[order[spare]] {
                        spare += 1;
                    }
                    order.swap(position, spare);
                    spare += 1;
                }
            }
        }
        order
    }

    fn shuffled(&self, epoch: u64) -> Vec<usize> {
        self.stream.at(epoch, 0).permutation(self.prompts)
    }
}
