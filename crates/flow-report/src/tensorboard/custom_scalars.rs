//! The layout of TensorBoard's custom scalars: a reward with its interval in one chart, and all prompts of a reward in one chart.
//!
//! Messages: tensorboard/plugins/custom_scalar/layout.proto.

use super::{EventWriter, Message};
use crate::error::Result;

impl EventWriter {
    /// Logs the layout for the rewards of evaluation. `has_prompts`: whether [`EventWriter::by_prompt`] is used.
    ///
    /// # Errors
    /// As [`EventWriter::scalar`].
    pub fn layout(&mut self, rewards: &[&str], has_prompts: bool) -> Result<()> {
        // Layout: version = 1, category = 2; Category: title = 1, chart = 2; Chart: title = 1, multiline = 2, margin = 3
        let mut held_out = Message::default();
        held_out.bytes(1, b"Rewards on held-out prompts, with 95 % intervals");
        for reward in rewards {
            let tag = format!("eval/reward/{reward}");
            // MarginChartContent: series = 1; Series: value = 1, lower = 2, upper = 3
            let (mut series, mut margin, mut chart) =
                (Message::default(), Message::default(), Message::default());
            series.bytes(1, tag.as_bytes());
            series.bytes(2, format!("intervals/{tag}/low").as_bytes());
            series.bytes(3, format!("intervals/{tag}/high").as_bytes());
            margin.bytes(1, &series.0);
            chart.bytes(1, reward.as_bytes());
            chart.bytes(3, &margin.0);
            held_out.bytes(2, &chart.0);
        }
        let mut layout = Message::default();
        layout.bytes(2, &held_out.0);
        if has_prompts {
            let mut by_prompt = Message::default();
            by_prompt.bytes(1, b"Rewards by prompt");
            for reward in rewards {
                // MultilineChartContent: tag = 1, regular expressions
                let (mut lines, mut chart) = (Message::default(), Message::default());
                lines.bytes(1, format!("prompts/{}/.*", literal(reward)).as_bytes());
                chart.bytes(1, reward.as_bytes());
                chart.bytes(2, &lines.0);
                by_prompt.bytes(2, &chart.0);
            }
            layout.bytes(2, &by_prompt.0);
        }
        self.tensor(
            "custom_scalars__config__",
            0,
            "custom_scalars",
            &[],
            Some(&layout.0),
        )
    }
}

/// A regular expression that matches `text` only.
fn literal(text: &str) -> String {
    let escaped = |letter: char| {
        let plain = letter.is_alphanumeric() || letter == '_' || !letter.is_ascii();
        if plain {
            letter.to_string()
        } else {
            format!("\\{letter}")
        }
    };
    text.chars().map(escaped).collect()
}
