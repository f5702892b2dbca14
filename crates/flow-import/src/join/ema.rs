//! The moving average. Flow-Factory makes its schedule of the keys of `train`, those that its trainer does not know
//! included (`models/abc.py`, `ema/ema_utils.py` at commit a0b2bc5, where the defaults below stand too).

use toml_edit::Value;

use super::{number, table, take_given, whole};
use crate::convert;
use crate::draft::{Draft, Item, Origin};
use crate::note::Rank;

/// Keys that parametrise a schedule, and what Flow-Factory takes where they are left out.
const INITIAL: &str = "train.initial_decay";
const WARMUP: (&str, i64) = ("train.warmup_steps", 10);
const TOTAL: (&str, i64) = ("train.total_steps", 1000);
const FLAT: (&str, i64) = ("train.flat_steps", 0);
const RATE: (&str, f64) = ("train.ramp_rate", 0.001);

/// Flow-Factory's schedule of the average: the decay after iteration t, counted from 0.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// As Flow-Factory writes it.
    pub kind: &'static str,
    /// The decay, or the most that it becomes.
    pub decay: Value,
    pub initial: Value,
    pub warmup: i64,
    pub total: i64,
    pub flat: i64,
    pub rate: Value,
    /// Iterations between updates.
    pub every: i64,
}

impl Schedule {
    /// What a config says. What is no number is as if it were left out; [`apply`] says so.
    pub fn of(draft: &Draft<'_>) -> Self {
        let node = |from: &str| draft.peek(from).filter(|item| !item.node.is_null());
        let value = |from: &str| node(from).and_then(|item| convert::number(item.node).ok());
        let count = |(from, default): (&str, i64)| {
            let count = node(from).and_then(whole).filter(|count| *count >= 0);
            count.unwrap_or(default)
        };
        let kind = node("train.ema_decay_schedule")
            .map_or("power".to_owned(), |item| item.node.flow().to_lowercase());
        let kind = KINDS.iter().find(|(known, ..)| *known == kind);
        Self {
            kind: kind.map_or("power", |(kind, ..)| kind),
            decay: value("train.ema_decay").unwrap_or_else(|| Value::from(0.995)),
            initial: value(INITIAL).unwrap_or_else(|| Value::from(0.0)),
            warmup: count(WARMUP),
            total: count(TOTAL),
            flat: count(FLAT),
            rate: value(RATE.0).unwrap_or_else(|| Value::from(RATE.1)),
            every: count(("train.ema_update_interval", 10)),
        }
    }

    /// Whether there is an average at all.
    pub fn exists(&self) -> bool {
        convert::float(&self.decay) != 0.0
    }

    /// In flow-train's words.
    fn written(&self) -> toml_edit::InlineTable {
        let decay = ("decay", self.decay.clone());
        let initial = ("initial", self.initial.clone());
        let kind = |kind: &'static str| ("kind", Value::from(kind));
        match self.kind {
            "constant" => table([kind("constant"), decay]),
            // Without a warm-up the power law is its limit.
            "power" if self.warmup == 0 => table([kind("constant"), decay]),
            "linear" => table([kind("linear"), initial, decay, ("steps", self.warmup.into())]),
            "cosine" => table([kind("cosine"), initial, decay, ("steps", self.total.into())]),
            "warmup_cosine" => {
                let steps = (self.total - self.warmup).into();
                let warmup = ("warmup", self.warmup.into());
                table([kind("warmup-cosine"), warmup, initial, decay, ("steps", steps)])
            }
            "piecewise_linear" => table([
                kind("piecewise-linear"),
                ("flat", self.flat.into()),
                ("rate", self.rate.clone()),
                ("maximum", self.decay.clone()),
            ]),
            _ => table([kind("power"), decay, ("warmup", (self.warmup as f64).into())]),
        }
    }

    /// The old policy of NFT in flow-train, `clamp((iteration - flat) * rate, 0, hold)` with iterations counted from 1,
    /// where it has the decays of this schedule; and a word on it.
    pub fn old_policy(&self) -> Option<(toml_edit::InlineTable, String)> {
        let policy = |flat: i64, rate: Value, hold: Value| {
            table([("flat", flat.into()), ("rate", rate), ("hold", hold)])
        };
        let first = |text: &str| format!("the average of Flow-Factory's schedule `{}`, {text}", self.kind);
        // A power law without a warm-up and no ramp at all are the same.
        let constant = self.kind == "constant" || self.kind == "power" && self.warmup == 0;
        let from_zero = convert::float(&self.initial) == 0.0;
        match self.kind {
            _ if !self.exists() => Some((
                policy(0, 0.0.into(), 0.0.into()),
                "with a decay of 0 there is no average, so the policy that is trained samples".into(),
            )),
            _ if constant => Some((
                policy(0, 1.0.into(), self.decay.clone()),
                first("which is at its decay from the start"),
            )),
            "piecewise_linear" => Some((
                policy(self.flat.saturating_add(1), self.rate.clone(), self.decay.clone()),
                first(&format!(
                    "which counts iterations from 0 and has flat_steps = {}; this one counts from 1",
                    self.flat
                )),
            )),
            "linear" if from_zero && self.warmup > 0 => Some((
                policy(
                    1,
                    (convert::float(&self.decay) / self.warmup as f64).into(),
                    self.decay.clone(),
                ),
                first(&format!(
                    "which reaches its decay in {} iterations counted from 0; this one counts from 1",
                    self.warmup
                )),
            )),
            _ => None,
        }
    }
}

/// Flow-Factory's schedules, and the keys that each reads besides `ema_decay`.
const KINDS: [(&str, &[&str]); 6] = [
    ("constant", &[]),
    ("power", &[WARMUP.0]),
    ("linear", &[INITIAL, WARMUP.0]),
    ("piecewise_linear", &[FLAT.0, RATE.0]),
    ("cosine", &[INITIAL, TOTAL.0]),
    ("warmup_cosine", &[INITIAL, WARMUP.0, TOTAL.0]),
];

pub(super) fn apply(draft: &mut Draft<'_>) {
    let plan = Schedule::of(draft);
    let decay = usable(draft, "train.ema_decay", "a number", |item| {
        number(item).is_some()
    });
    let interval = take_given(draft, "train.ema_update_interval");
    let schedule = take_given(draft, "train.ema_decay_schedule");
    let reads = KINDS.iter().find(|(kind, _)| *kind == plan.kind);
    let reads = reads.map_or(&[] as &[&str], |(_, reads)| reads);
    let mut params = Vec::new();
    for from in [INITIAL, WARMUP.0, TOTAL.0, FLAT.0, RATE.0] {
        let of_numbers = from == INITIAL || from == RATE.0;
        let what = if of_numbers {
            "a number"
        } else {
            "a whole number from 0"
        };
        let fits = |item: &Item<'_>| match of_numbers {
            true => number(item).is_some(),
            false => whole(item).is_some_and(|count| count >= 0),
        };
        let Some(item) = usable(draft, from, what, fits) else {
            continue;
        };
        if plan.exists() && reads.contains(&from) {
            params.push(item);
        } else {
            let reason = format!("Flow-Factory's schedule `{}` does not read it", plan.kind);
            draft.keep_as(Rank::Detail, "ema", &item.origin, reason);
        }
    }
    if !plan.exists() {
        let text = "with a decay of 0 there is no average";
        if let Some(item) = &decay {
            draft.same(&item.origin, "ema.enabled", text);
        }
        for item in [&interval, &schedule].into_iter().flatten() {
            draft.keep_as(
                Rank::Detail,
                "ema",
                &item.origin,
                format!("{text}, so this is not read"),
            );
        }
        return;
    }
    let of_decay: Vec<&Origin> = decay.iter().map(|item| &item.origin).collect();
    let text = "Flow-Factory keeps an average and evaluates it";
    draft.set("ema.enabled", true, &of_decay, text);
    update_every(draft, interval.as_ref());
    let known = schedule
        .as_ref()
        .filter(|item| item.node.flow().to_lowercase() == plan.kind);
    if let (Some(item), None) = (&schedule, known) {
        let reason = "none of the schedules; Flow-Factory's default, power, is written";
        draft.keep("ema", &item.origin, reason);
    }
    let origins: Vec<&Origin> = of_decay
        .iter()
        .copied()
        .chain(known.map(|item| &item.origin))
        .chain(params.iter().map(|item| &item.origin))
        .collect();
    let text = "the decay after iteration t; what the YAML leaves out is as Flow-Factory has it";
    draft.set("ema.schedule", plan.written(), &origins, text);
    let text = "Flow-Factory evaluates the average";
    draft.set("evaluation.weights", "ema", &of_decay, text);
}

/// Takes a key if its value is one that Flow-Factory could use, and says so if it is not.
fn usable<'y>(
    draft: &mut Draft<'y>,
    from: &str,
    what: &str,
    fits: impl Fn(&Item<'_>) -> bool,
) -> Option<Item<'y>> {
    let item = take_given(draft, from)?;
    if fits(&item) {
        return Some(item);
    }
    let reason = format!(
        "{}; Flow-Factory's default is written",
        convert::not_a(what, item.node)
    );
    draft.keep("ema", &item.origin, reason);
    None
}

fn update_every(draft: &mut Draft<'_>, interval: Option<&Item<'_>>) {
    match interval.map(|item| (item, whole(item))) {
        None => draft.set("ema.update_every", 10, &[], "train.ema_update_interval"),
        Some((item, Some(every))) => {
            draft.set(
                "ema.update_every",
                every,
                &[&item.origin],
                "iterations between updates",
            );
        }
        Some((item, None)) => {
            let reason = convert::not_a("a whole number", item.node);
            draft.keep("ema", &item.origin, reason);
        }
    }
}
