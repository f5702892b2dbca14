//! Which geometry was in force from which iteration on: the addresses of prompts and noise.
//!
//! A prompt, a group and a sample are known by how many came before them in the run, not by what an iteration would hold under the
//! settings of the moment. So a run that goes on with other numbers of prompts or samples draws what was not drawn before.

use serde::{Deserialize, Serialize};

use crate::geometry::BatchGeometry;

/// Iterations of one geometry, and what came before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GeometrySpan {
    /// Its first iteration.
    pub first_iteration: u64,
    /// Groups of the run before it.
    pub first_group: u64,
    /// Samples of the run before it.
    pub first_sample: u64,
    /// Groups of each of its iterations.
    pub prompts: u64,
    /// Samples of each group; candidates where more are explored than are trained on.
    pub group_size: u64,
}

/// The geometries of a run, one after another. Part of every checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeometryHistory {
    /// At least one; the first begins with iteration 0.
    spans: Vec<GeometrySpan>,
}

impl GeometryHistory {
    /// Of a run that has one geometry from its start.
    pub fn new(geometry: &BatchGeometry) -> Self {
        Self::of_prompts(geometry.prompts(), geometry.candidates())
    }

    /// As [`GeometryHistory::new`], by its numbers.
    pub(crate) fn of_prompts(prompts: usize, group_size: usize) -> Self {
        Self {
            spans: vec![GeometrySpan {
                first_iteration: 0,
                first_group: 0,
                first_sample: 0,
                prompts: prompts as u64,
                group_size: group_size as u64,
            }],
        }
    }

    /// Of a run of which only the number of `samples` before `iteration` is known, from an older checkpoint. Nothing that may have
    /// been drawn is drawn again: no more groups than samples were.
    pub(crate) fn after_samples(iteration: u64, samples: u64, geometry: &BatchGeometry) -> Self {
        let mut history = Self::new(geometry);
        let expected = iteration.saturating_mul(geometry.samples() as u64);
        if samples != expected {
            history.spans.push(GeometrySpan {
                first_iteration: iteration,
                first_group: samples,
                first_sample: samples,
                ..history.spans[0]
            });
        }
        history
    }

    /// Goes on with `geometry` from `iteration`; what was said of later iterations is forgotten.
    pub fn change(&mut self, iteration: u64, geometry: &BatchGeometry) {
        let (prompts, group_size) = (geometry.prompts() as u64, geometry.candidates() as u64);
        let (first_group, first_sample) = (self.first_group(iteration), self.first_sample(iteration));
        self.spans.retain(|span| span.first_iteration < iteration);
        let is_same = |span: &GeometrySpan| span.prompts == prompts && span.group_size == group_size;
        if self.spans.last().is_none_or(|last| !is_same(last)) {
            self.spans.push(GeometrySpan {
                first_iteration: iteration,
                first_group,
                first_sample,
                prompts,
                group_size,
            });
        }
    }

    /// Whether it can be the history of a run: read from a file, it may be anything.
    pub(crate) fn is_sound(&self) -> bool {
        let starts = self
            .spans
            .first()
            .is_some_and(|first| (first.first_iteration, first.first_group, first.first_sample) == (0, 0, 0));
        let sizes = (self.spans.iter()).all(|span| span.prompts > 0 && span.group_size > 0);
        let rises = self.spans.windows(2).all(|pair| {
            pair[0].first_iteration < pair[1].first_iteration
                && pair[0].first_group <= pair[1].first_group
                && pair[0].first_sample <= pair[1].first_sample
        });
        starts && sizes && rises
    }

    /// Groups of the run before `iteration`.
    pub fn first_group(&self, iteration: u64) -> u64 {
        let span = self.span(iteration);
        span.first_group + (iteration - span.first_iteration) * span.prompts
    }

    /// Samples of the run before `iteration`.
    pub fn first_sample(&self, iteration: u64) -> u64 {
        let span = self.span(iteration);
        span.first_sample + (iteration - span.first_iteration) * span.prompts * span.group_size
    }

    /// A number that no other sample of the run has: the address of its random numbers.
    pub fn sample_id(&self, iteration: u64, sample: usize) -> u64 {
        self.first_sample(iteration) + sample as u64
    }

    /// Groups that `iteration` holds.
    pub(crate) fn prompts(&self, iteration: u64) -> u64 {
        self.span(iteration).prompts
    }

    /// The most groups that any iteration holds.
    pub(crate) fn most_prompts(&self) -> u64 {
        self.spans.iter().map(|span| span.prompts).max().unwrap_or(1)
    }

    /// Of the iteration that holds the run's group number `group`: how many of its groups come before that one, and how many it has.
    pub(crate) fn place_of_group(&self, group: u64) -> (u64, u64) {
        let span = Self::last_where(&self.spans, |span| span.first_group <= group);
        ((group - span.first_group) % span.prompts, span.prompts)
    }

    fn span(&self, iteration: u64) -> &GeometrySpan {
        Self::last_where(&self.spans, |span| span.first_iteration <= iteration)
    }

    fn last_where(spans: &[GeometrySpan], holds: impl Fn(&GeometrySpan) -> bool) -> &GeometrySpan {
        let found = spans.iter().rfind(|span| holds(span));
        found
            .or(spans.first())
            .expect("a history has a first span, of which everything holds")
    }
}
