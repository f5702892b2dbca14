//! The moving average.

use toml_edit::Value;

use super::{number, table, take_given, whole};
use crate::convert;
use crate::draft::{Draft, Origin};

pub(super) fn apply(draft: &mut Draft<'_>) {
    let mut decay = take_given(draft, "train.ema_decay");
    let interval = take_given(draft, "train.ema_update_interval");
    let schedule = take_given(draft, "train.ema_decay_schedule");
    if let Some(item) = decay.take_if(|item| number(item).is_none()) {
        let reason = format!(
            "{}; Flow-Factory's 0.995 is written",
            convert::not_a("a number", item.node)
        );
        draft.keep("ema", &item.origin, reason);
    }
    if let Some(item) = decay.as_ref().filter(|item| number(item) == Some(0.0)) {
        draft.same(
            &item.origin,
            "ema.enabled",
            "with a decay of 0 there is no average",
        );
        for item in [&interval, &schedule].into_iter().flatten() {
            draft.keep(
                "ema",
                &item.origin,
                "with a decay of 0 there is no average, so this is not read",
            );
        }
        return;
    }
    let of_decay: Vec<&Origin> = decay.iter().map(|item| &item.origin).collect();
    let text = "Flow-Factory keeps an average and evaluates it";
    draft.set("ema.enabled", true, &of_decay, text);
    match interval.as_ref().map(|item| (item, whole(item))) {
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
    let value = decay.as_ref().and_then(|item| convert::number(item.node).ok());
    let value = value.unwrap_or_else(|| Value::from(0.995));
    let name = schedule
        .as_ref()
        .map_or("power".to_owned(), |item| item.node.flow().to_lowercase());
    const RAMP: &str = "Flow-Factory's config has no key for the length of the ramp; flow-train's are steps, warmup, flat and rate";
    let (kind, key, text) = match name.as_str() {
        "constant" => ("constant", "decay", "the decay at iteration t"),
        "power" => ("power", "decay", "the decay at iteration t"),
        "linear" => ("linear", "decay", RAMP),
        "cosine" => ("cosine", "decay", RAMP),
        "warmup_cosine" => ("warmup-cosine", "decay", RAMP),
        "piecewise_linear" => ("piecewise-linear", "maximum", RAMP),
        _ => {
            if let Some(item) = &schedule {
                let reason = "none of the schedules; Flow-Factory's default, power, is written";
                draft.keep("ema", &item.origin, reason);
            }
            ("power", "decay", "the decay at iteration t")
        }
    };
    let known = schedule.as_ref().filter(|_| kind.replace('-', "_") == name);
    let origins: Vec<&Origin> = of_decay
        .iter()
        .copied()
        .chain(known.map(|item| &item.origin))
        .collect();
    draft.set(
        "ema.schedule",
        table([("kind", kind.into()), (key, value)]),
        &origins,
        text,
    );
    draft.set(
        "evaluation.weights",
        "ema",
        &of_decay,
        "Flow-Factory evaluates the average",
    );
}
