//! Masks: which steps are computed, known before the trajectory.
//!
//! The published masks are those of cache-dit (`steps_mask`, `caching/cache_interface.py`), made of runs of computed
//! and answered steps: 28 steps by hand, 9 to 15 and 8 by hand for distilled models, 6 and 4 as one mask for all; others
//! by shortening or lengthening the runs. The last step is always computed. 20 steps of `fast` answer 11 in a row: bound
//! it with `max_consecutive`, or write a mask.

use crate::Moment;

/// Which steps are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mask {
    /// One flag per step, true where it is computed. Trajectories with another number of steps are computed.
    Steps(Vec<bool>),
    /// A published one, for any number of steps that it is defined for.
    Published(PublishedMask),
}

/// The published masks, the first of which computes most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedMask {
    /// 18 of 28 steps are computed.
    Slow,
    /// 15 of 28.
    Medium,
    /// 11 of 28.
    Fast,
    /// 8 of 28.
    Ultra,
}

impl Mask {
    /// Whether the step is to be computed.
    pub fn computes(&self, moment: &Moment) -> bool {
        let (step, steps) = (moment.step as usize, moment.steps as usize);
        let flags = match self {
            Self::Steps(flags) if flags.len() == steps => Some(flags.clone()),
            Self::Steps(_) => None,
            Self::Published(mask) => mask.flags(steps),
        };
        flags.is_none_or(|flags| flags.get(step).copied().unwrap_or(true))
    }
}

/// Lengths of runs of computed steps, and of the runs of answered steps between them.
struct Runs {
    computed: Vec<usize>,
    answered: Vec<usize>,
}

impl PublishedMask {
    /// One flag per step, true where it is computed; none for fewer than 4 steps, for 5 and for 7.
    pub fn flags(self, steps: usize) -> Option<Vec<bool>> {
        let mut runs = self.runs(steps)?;
        runs.fit(steps);
        let mut flags = Vec::with_capacity(steps);
        for run in 0..runs.computed.len().max(runs.answered.len()) {
            let length = |runs: &[usize]| runs.get(run).copied().unwrap_or(0);
            flags.extend(std::iter::repeat_n(true, length(&runs.computed)));
            flags.extend(std::iter::repeat_n(false, length(&runs.answered)));
        }
        flags.truncate(steps);
        *flags.last_mut()? = true;
        (flags.len() == steps).then_some(flags)
    }

    fn runs(self, steps: usize) -> Option<Runs> {
        let of = |computed: &[usize], answered: &[usize]| {
            Some(Runs {
                computed: computed.to_vec(),
                answered: answered.to_vec(),
            })
        };
        match (steps, self) {
            (4, _) => of(&[2, 1], &[1]),
            (6, _) => of(&[3, 1], &[2]),
            (0..8, _) => None,
            (8, Self::Slow) => of(&[5, 1, 1], &[1]),
            (8, Self::Medium) => of(&[4, 1, 1], &[1, 1]),
            (8, Self::Fast) => of(&[3, 1, 1], &[1, 2]),
            (8, Self::Ultra) => of(&[2, 1, 1], &[2, 2]),
            (9, Self::Slow) => of(&[5, 2, 1], &[1]),
            (9, Self::Medium) => of(&[5, 1, 1], &[1, 1]),
            (9, Self::Fast) => of(&[4, 1, 1], &[1, 2]),
            (9, Self::Ultra) => of(&[3, 1, 1], &[2, 2]),
            (10..16, Self::Slow) => of(&[4, 2, 2, 2, 1], &[1, 1, 1, 1]),
            (10..16, Self::Medium) => of(&[4, 2, 1, 1, 1], &[1, 1, 2, 2]),
            (10..16, Self::Fast) => of(&[3, 1, 1, 1, 1], &[1, 2, 2, 3]),
            (10..16, Self::Ultra) => of(&[2, 1, 1, 1, 1], &[1, 2, 3, 3]),
            (_, Self::Slow) => of(&[8, 3, 3, 2, 1, 1], &[1, 2, 2, 2, 3]),
            (_, Self::Medium) => of(&[6, 2, 2, 2, 2, 1], &[1, 3, 3, 3, 3]),
            (_, Self::Fast) => of(&[6, 1, 1, 1, 1, 1], &[1, 3, 4, 5, 4]),
            (_, Self::Ultra) => of(&[4, 1, 1, 1, 1], &[2, 5, 6, 7]),
        }
    }
}

impl Runs {
    fn steps(&self) -> usize {
        self.computed.iter().chain(&self.answered).sum()
    }

    /// Makes the runs cover `steps`, as the original does: longer in proportion from the front, or shorter by one at a
    /// time from the back, in turn.
    fn fit(&mut self, steps: usize) {
        let growth = |run: usize| ((run as f64 * (steps as f64 / 28.0 * 0.5)) as usize).max(1);
        let (computed, answered) = (self.computed.clone(), self.answered.clone());
        'grow: while self.steps() < steps {
            for run in 0..computed.len().min(answered.len()) {
                self.computed[run] += growth(computed[run]);
                if self.steps() >= steps {
                    break 'grow;
                }
                self.answered[run] += growth(answered[run]);
                if self.steps() >= steps {
                    break 'grow;
                }
            }
            if let Some(last) = self.computed.last_mut() {
                *last += 1;
            }
        }
        while self.steps() > steps {
            shorten(&mut self.answered);
            if self.steps() > steps {
                shorten(&mut self.computed);
            }
        }
    }
}

/// Takes one step off the last run.
fn shorten(runs: &mut Vec<usize>) {
    if let Some(last) = runs.last_mut() {
        *last -= 1;
        if *last == 0 {
            runs.pop();
        }
    }
}
