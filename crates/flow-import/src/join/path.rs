//! Random steps, evaluation, seed and logging.

use toml_edit::Value;

use super::{distillation, records, table, take_given, whole};
use crate::convert::{self, is_one_of, list};
use crate::draft::{Draft, Item, Origin};
use crate::note::Rank;
use crate::rule::Conversion;

/// Denoising steps of a rollout, as the YAML has them.
fn steps(draft: &Draft<'_>) -> i64 {
    draft
        .peek("train.num_inference_steps")
        .and_then(whole)
        .unwrap_or(10)
}

/// How a step goes from one sigma to the next.
pub(super) fn dynamics(draft: &mut Draft<'_>) {
    const TO: &str = "scheduler.dynamics";
    const TEXT: &str = "how a step goes from one sigma to the next";
    let words = Conversion::Choice(&[
        ("Flow-SDE", "flow-sde"),
        ("Dance-SDE", "dance-sde"),
        ("CPS", "cps"),
        ("ODE", "ode"),
    ]);
    let item = take_given(draft, "scheduler.dynamics_type");
    let replays = distillation::replays(draft.kind);
    let mut is_written = false;
    if let Some(item) = &item {
        match convert::convert(words, item.node) {
            Ok(value) if replays && value.as_str() != Some("ode") => {
                let reason =
                    "this trainer takes the steps of the rollout once more, which must be deterministic";
                draft.keep("scheduler", &item.origin, reason);
            }
            Ok(value) => {
                draft.set(TO, value, &[&item.origin], TEXT);
                is_written = true;
            }
            Err(why) => draft.keep("scheduler", &item.origin, format!("{why} ({TO}: {TEXT})")),
        }
    }
    if replays && !is_written {
        draft.set(TO, "ode", &[], "its trainers dmd2, tdm and tdm-r1 take ODE steps");
    }
}

pub(super) fn window(draft: &mut Draft<'_>) {
    let number = draft.take("scheduler.num_sde_steps");
    let from = take_given(draft, "scheduler.sde_steps");
    let seed = take_given(draft, "scheduler.seed");
    let ode = draft
        .peek("scheduler.dynamics_type")
        .is_some_and(|item| is_one_of(item.node, &["ODE"]));
    let on_records = records::rows(draft.kind).is_some();
    if ode || on_records || distillation::replays(draft.kind) {
        for item in [&number, &from, &seed].into_iter().flatten() {
            let reason = match on_records {
                true => records::NO_ROLLOUT,
                false => "ODE has no random steps, so this is not read",
            };
            draft.keep_as(Rank::Detail, "scheduler", &item.origin, reason);
        }
        return;
    }
    let listed: Option<Vec<i64>> = from.as_ref().and_then(|item| {
        let nodes = item.node.list()?;
        let whole_of = |node| {
            whole(&Item {
                origin: item.origin.clone(),
                node,
            })
        };
        nodes.iter().map(whole_of).collect()
    });
    if let (Some(item), None) = (&from, &listed) {
        draft.keep(
            "scheduler",
            &item.origin,
            convert::not_a("a list of whole numbers", item.node),
        );
    }
    let from = from.filter(|_| listed.is_some());
    let available = listed
        .as_ref()
        .map_or(steps(draft) - 1, |steps| steps.len() as i64);
    let count = match &number {
        None => 1,
        Some(item) if item.node.is_null() => available,
        Some(item) => match whole(item) {
            Some(count) if count > 0 => count,
            _ => {
                let reason = "not a whole number above 0; Flow-Factory's default of 1 is written";
                draft.keep("scheduler", &item.origin, reason);
                1
            }
        },
    };
    let usable = number.filter(|item| item.node.is_null() || whole(item).is_some_and(|count| count > 0));
    let mut origins: Vec<&Origin> = [&usable, &from]
        .into_iter()
        .flatten()
        .map(|item| &item.origin)
        .collect();
    let steps = listed.map(|steps| list(steps.into_iter().map(Value::from)));
    if count < available {
        let mut pairs = vec![("kind", Value::from("random")), ("count", count.into())];
        pairs.extend(steps.map(|steps| ("from", steps)));
        if let Some(item) = &seed {
            match convert::convert(Conversion::Integer, item.node) {
                Ok(value) => {
                    pairs.push(("seed", value));
                    origins.push(&item.origin);
                }
                Err(why) => draft.keep("scheduler", &item.origin, why),
            }
        }
        let text = "random steps, drawn anew in each iteration; only they are trained";
        draft.set("scheduler.window", table(pairs), &origins, text);
        return;
    }
    if let Some(item) = &seed {
        let reason = "every step of the window is random, so nothing is drawn";
        draft.keep_as(Rank::Detail, "scheduler", &item.origin, reason);
    }
    let (pairs, text) = match steps {
        Some(steps) => (
            vec![("kind", "list".into()), ("steps", steps)],
            "all of these steps are random",
        ),
        None => (
            vec![("kind", Value::from("all"))],
            "every step but the last is random",
        ),
    };
    if count > available {
        let text = format!("{text}; {count} were asked for, but there are {available}");
        draft.set_with_attention("scheduler.window", table(pairs), &origins, &text);
    } else {
        draft.set("scheduler.window", table(pairs), &origins, text);
    }
}

/// Evaluation takes the size of training.
fn size_of_evaluation(draft: &mut Draft<'_>) {
    for (from, of_training) in [
        ("eval.resolution", "train.resolution"),
        ("eval.height", "train.height"),
        ("eval.width", "train.width"),
        ("eval.num_frames", "train.num_frames"),
    ] {
        let Some(item) = take_given(draft, from) else {
            continue;
        };
        let of_training = draft.peek(of_training).map(|item| item.node.flow());
        match of_training {
            Some(size) if size == item.origin.value => {
                draft.same(&item.origin, "", "evaluation takes the size of training");
            }
            Some(size) => {
                let reason = format!("evaluation takes the size of training, {size}");
                draft.keep("evaluation", &item.origin, reason);
            }
            None => draft.keep(
                "evaluation",
                &item.origin,
                "evaluation takes the size of training",
            ),
        }
    }
}

pub(super) fn evaluation(draft: &mut Draft<'_>) {
    size_of_evaluation(draft);
    let told = super::model::told_guidance(draft);
    let training = draft
        .peek("train.guidance_scale")
        .and_then(|item| convert::convert(Conversion::Guidance, item.node).ok())
        .map_or(3.5, |value| convert::float(&value));
    let keys = [
        (
            "eval.guidance_scale",
            "evaluation.guidance_scale",
            Conversion::Guidance,
            Value::from(3.5),
            training == 3.5,
        ),
        (
            "eval.num_inference_steps",
            "evaluation.steps",
            Conversion::Integer,
            Value::from(30),
            steps(draft) == 30,
        ),
    ];
    for (from, to, conversion, default, follows) in keys {
        if told && from == "eval.guidance_scale" {
            continue;
        }
        match take_given(draft, from) {
            Some(item) => match convert::convert(conversion, item.node) {
                Ok(value) => draft.set(to, value, &[&item.origin], "of evaluation"),
                Err(why) => draft.keep("evaluation", &item.origin, why),
            },
            None if !follows => draft.set(to, default, &[], from),
            None => {}
        }
    }
}

pub(super) fn seed(draft: &mut Draft<'_>) {
    let of_training = take_given(draft, "train.seed");
    let at_top = take_given(draft, "seed");
    if let (Some(_), Some(item)) = (&of_training, &at_top) {
        let reason = "Flow-Factory reads `train.seed`, which is there too";
        draft.keep_as(Rank::Detail, "run", &item.origin, reason);
    }
    let Some(item) = of_training.or(at_top) else {
        draft.set("run.seed", 42, &[], "train.seed");
        return;
    };
    match convert::convert(Conversion::Integer, item.node) {
        Ok(value) => draft.set(
            "run.seed",
            value,
            &[&item.origin],
            "seed of the run; the numbers drawn from it differ from Flow-Factory's",
        ),
        Err(why) => draft.keep("run", &item.origin, why),
    }
}

pub(super) fn logging(draft: &mut Draft<'_>) {
    let Some(item) = draft.take("log.logging_backend") else {
        return;
    };
    if item.node.is_null() || is_one_of(item.node, &["none"]) {
        draft.set(
            "logging.tensorboard",
            false,
            &[&item.origin],
            "no TensorBoard events",
        );
    } else if is_one_of(item.node, &["tensorboard"]) {
        draft.set("logging.tensorboard", true, &[&item.origin], "TensorBoard events");
    } else {
        let reason =
            "flow-train speaks to no service; it writes TensorBoard events, metrics.jsonl and report.html";
        draft.keep_as(Rank::Detail, "logging", &item.origin, reason);
    }
}
