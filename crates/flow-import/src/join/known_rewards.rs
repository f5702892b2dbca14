//! Rewards of Flow-Factory that flow-train computes by the same formula (`rewards/*.py` at commit a0b2bc5). Their weights are
//! files beside the config here, so the verdict names what is to be fetched.

use toml_edit::{InlineTable, Value};

use super::rewards::children;
use super::table;
use crate::convert;
use crate::draft::{Draft, Item, Origin};
use crate::note::Rank;
use crate::yaml::Node;

/// Where Flow-Factory takes its PickScore from.
const PICKSCORE: &str = "yuvalkirstain/PickScore_v1";
/// Flow-Factory's CLIP where the config names none.
const CLIP: &str = "openai/clip-vit-large-patch14";
/// Batches that a reward takes here.
const MOST_BATCH: i64 = 1024;

/// A reward of Flow-Factory that flow-train has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    PickScore,
    PickScoreRank,
    Clip,
    Ocr,
    /// One that a server computes.
    Remote {
        groupwise: bool,
    },
}

impl Known {
    /// By its name in Flow-Factory's registry, in which case does not matter, or by the path of Flow-Factory's own class.
    pub fn of(model: &str) -> Option<Self> {
        let model = model.to_lowercase();
        let class = model
            .strip_prefix("flow_factory.")
            .and_then(|path| path.rsplit('.').next());
        Some(match class.unwrap_or(&model) {
            "pickscore" | "pickscorerewardmodel" => Self::PickScore,
            "pickscore_rank" | "pickscorerankrewardmodel" => Self::PickScoreRank,
            "clip" | "cliprewardmodel" => Self::Clip,
            "ocr" | "ocrrewardmodel" => Self::Ocr,
            "remotepointwiserewardmodel" => Self::Remote { groupwise: false },
            "remotegroupwiserewardmodel" => Self::Remote { groupwise: true },
            _ => return None,
        })
    }

    fn kind(self) -> &'static str {
        match self {
            Self::PickScore => "pickscore",
            Self::PickScoreRank => "rank-in-group",
            Self::Clip => "clip-score",
            Self::Ocr => "ocr",
            Self::Remote { .. } => "remote",
        }
    }

    /// The key for images per batch; the group decides it where whole groups are scored.
    fn batch(self) -> Option<&'static str> {
        match self {
            Self::PickScore | Self::PickScoreRank | Self::Clip => Some("batch_size"),
            Self::Ocr | Self::Remote { groupwise: false } => Some("batch"),
            Self::Remote { groupwise: true } => None,
        }
    }

    fn is_network(self) -> bool {
        matches!(self, Self::PickScore | Self::PickScoreRank | Self::Clip)
    }
}

/// Adds a known reward to a list; whether its map says enough for that.
pub(super) fn push(
    draft: &mut Draft<'_>,
    list: &'static str,
    known: Known,
    origin: &Origin,
    node: &Node,
) -> bool {
    let Some((source, text)) = source(draft, known, node) else {
        return false;
    };
    let mut outer = table([("kind", known.kind().into())]);
    let mut own = table(source);
    // Flow-Factory's reward models lie on the GPU unless told otherwise.
    let mut device = known.is_network().then_some("run");
    for item in children(origin, node) {
        let last = item.origin.from.rsplit('.').next().unwrap_or_default().to_owned();
        match last.as_str() {
            "reward_model" | "model_name_or_path" | "server_url" => {}
            "name" => match item.node.text() {
                Some(name) => drop(outer.insert("name", Value::from(name))),
                None => draft.keep(list, &item.origin, convert::not_a("a text", item.node)),
            },
            "weight" => match convert::number(item.node) {
                Ok(weight) => drop(outer.insert("weight", weight)),
                Err(why) => draft.keep(list, &item.origin, why),
            },
            "batch_size" => batch(draft, list, known, &item, &mut own),
            "timeout" if matches!(known, Known::Remote { .. }) => match convert::number(item.node) {
                Ok(seconds) => drop(own.insert("timeout_s", seconds)),
                Err(why) => draft.keep(list, &item.origin, why),
            },
            "device" if known.is_network() && convert::is_one_of(item.node, &["cpu"]) => device = None,
            "device" if known.is_network() => {}
            _ => draft.keep_as(Rank::Detail, list, &item.origin, detail(known, &last)),
        }
    }
    if let Some(device) = device {
        own.insert("device", device.into());
    }
    if known == Known::PickScoreRank {
        outer.insert("reward", "pickscore".into());
        outer.insert("params", Value::InlineTable(own));
    } else {
        for (key, value) in own.iter() {
            outer.insert(key, value.clone());
        }
    }
    match known {
        Known::Remote { .. } => draft.push(list, outer, origin, text, false),
        _ => draft.push_needed(list, outer, origin, text),
    }
    true
}

type Pairs = Vec<(&'static str, Value)>;

/// Where the reward is from, and what is to be said of it.
fn source(draft: &mut Draft<'_>, known: Known, node: &Node) -> Option<(Pairs, String)> {
    let text_of = |key: &str| node.get(key).and_then(Node::text).filter(|text| !text.is_empty());
    match known {
        Known::PickScore | Known::PickScoreRank => {
            let text = if known == Known::PickScore {
                "PickScore / 26, as in Flow-Factory"
            } else {
                "ranks of PickScore within the group, from 0 to 1; Flow-Factory's end at (n - 1) / n for n images"
            };
            let (path, where_it_is) = folder(draft, PICKSCORE);
            Some((vec![("path", path)], format!("{text}; {where_it_is}")))
        }
        Known::Clip => {
            let name = text_of("model_name_or_path").unwrap_or(CLIP);
            let is_video = draft
                .peek("model.model_type")
                .and_then(|item| item.node.text())
                .is_some_and(|kind| kind.to_lowercase().starts_with("wan"));
            let text = if is_video {
                "the cosine of image and prompt by CLIP: the mean over the frames of a video, in Flow-Factory that of its first frame"
            } else {
                "the cosine of image and prompt by CLIP, as in Flow-Factory"
            };
            let (path, where_it_is) = folder(draft, name);
            Some((vec![("path", path)], format!("{text}; {where_it_is}")))
        }
        Known::Ocr => {
            draft.need("the files of PP-OCR in the folder `ocr` beside the TOML");
            let text = "`path` is the folder with PP-OCR's ONNX files; every prompt must have its text in double quotes, where Flow-Factory \
                        takes the whole prompt if there are none (`target = \"prompt\"`)";
            Some((vec![("path", "ocr".into())], text.to_owned()))
        }
        Known::Remote { groupwise } => {
            let mut pairs = vec![("servers", convert::list([text_of("server_url")?.into()]))];
            if groupwise {
                pairs.push(("groupwise", true.into()));
                // Flow-Factory waits twice as long for a group.
                pairs.push(("timeout_s", Value::from(120.0)));
            }
            let text = "a server that speaks Flow-Factory's protocol";
            Some((pairs, text.to_owned()))
        }
    }
}

/// The folder that `flow-train fetch` makes of a network on a hub, or the folder that the YAML names; and how to come by it.
fn folder(draft: &mut Draft<'_>, name: &str) -> (Value, String) {
    if super::model::is_hub_name(name) {
        draft.need(format!("a copy of {name} (`flow-train fetch {name}`)"));
        let text = format!(
            "`flow-train fetch {name}` makes the folder in the working directory; the path is relative to this file"
        );
        return (name.rsplit('/').next().unwrap_or(name).into(), text);
    }
    let text = "the path is relative to this file, in Flow-Factory to the working directory";
    (name.into(), text.to_owned())
}

fn batch(draft: &mut Draft<'_>, list: &'static str, known: Known, item: &Item<'_>, own: &mut InlineTable) {
    let Some(key) = known.batch() else {
        let reason = "each request has all images of a group";
        return draft.keep_as(Rank::Detail, list, &item.origin, reason);
    };
    match super::whole(item).filter(|number| (1..=MOST_BATCH).contains(number)) {
        // What flow-train takes anyway.
        Some(16) if known != Known::Ocr => {}
        Some(number) => drop(own.insert(key, number.into())),
        None => {
            let what = format!("a whole number from 1 to {MOST_BATCH}");
            draft.keep_as(Rank::Detail, list, &item.origin, convert::not_a(&what, item.node));
        }
    }
}

fn detail(known: Known, key: &str) -> &'static str {
    match (known, key) {
        (Known::Remote { .. }, "retry_attempts") => {
            "flow-train asks again three times, and waits longer each time: `retries`, `backoff_s`"
        }
        (_, "dtype") if known.is_network() => {
            "the network computes in the precision of the run, or in f32 on a processor"
        }
        (_, "async_reward" | "num_workers") => {
            "rewards are computed beside the generation, always; `device = \"run\"` computes them between its work"
        }
        (Known::Ocr | Known::Remote { .. }, _) => "this reward is computed on the host's worker threads",
        _ => "no key of this reward",
    }
}
