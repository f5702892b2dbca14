//! `sample`: images for prompts, as one picture.

use super::{Loaded, survey::Use, weights};
use crate::arguments::{ExistingFile, SampleArguments};
use crate::failure::{Failure, OrFailure};
use crate::output::Output;
use crate::terminal;
use flow_data::Prompt;
use flow_report::{ImageGrid, Tile};
use flow_rewards::{RewardScores, Sample};
use flow_trainer::setup;

/// Generates, scores with the config's rewards if it has some, and writes the picture.
pub fn run(arguments: &SampleArguments, quiet: bool) -> Result<(), Failure> {
    let output = output(arguments)?;
    let place = weights::instead(&arguments.config, arguments.weights.as_deref());
    let loaded = Loaded::read(&place, Use::Looking)?;
    let config = loaded.config();
    weights::expect(config)?;
    let count = usize::from(arguments.count);
    let text = loaded.compute(config, |environment| {
        let mut common = setup::common(config, environment).or_bad_input()?;
        if let Some(seed) = arguments.seed {
            common.evaluation.sampler.seed = seed;
        }
        let common = common.set_up().or_bad_input()?;
        let prompts: Vec<Prompt> = arguments
            .prompt
            .iter()
            .map(|text| common.dataset.parse_prompt(text))
            .collect::<Result<_, _>>()
            .or_bad_input()?;
        let wanted: Vec<Prompt> = prompts
            .iter()
            .flat_map(|prompt| vec![prompt.clone(); count])
            .collect();
        let images = flow_trainer::sample(&common, &wanted, config.sampling.micro_batch).or_failed()?;
        let rewards = config.effective_eval_rewards();
        let scores = if rewards.is_empty() {
            Vec::new()
        } else {
            let workers = setup::rewards(rewards, environment, 1).or_bad_input()?.workers;
            let samples = wanted
                .iter()
                .zip(&images)
                .enumerate()
                .map(|(index, (prompt, image))| Sample {
                    image: image.clone(),
                    prompt: prompt.clone(),
                    group: (index / count) as u64,
                });
            workers
                .submit(samples.collect(), 0)
                .and_then(|ticket| ticket.wait())
                .or_failed()?
                .rewards
        };
        let mut grid = ImageGrid::new().scale(config.evaluation.grid.scale.max(1) as u32);
        for (row, prompt) in prompts.iter().enumerate() {
            let of_row = row * count..(row + 1) * count;
            let tiles = images[of_row.clone()].iter().zip(of_row).map(|(image, index)| {
                let tile = Tile::new(
                    image.channels,
                    image.height,
                    image.width,
                    image.pixels_chw.clone(),
                )?;
                Ok(match scores.first() {
                    Some(scores) => tile.label(format!("{:.2}", scores.values[index])),
                    None => tile,
                })
            });
            grid.row(
                prompt.text.clone(),
                tiles
                    .collect::<Result<_, flow_report::ReportError>>()
                    .or_failed()?,
            );
        }
        let picture = grid.picture().or_failed()?;
        output.make_room_and_say()?;
        flow_report::atomic_write(output.path(), "picture", |out| out.write_all(&picture.png)).or_failed()?;
        Ok(lines(&prompts, &scores, count))
    })?;
    if !quiet {
        terminal::print(&text)?;
    }
    terminal::line(&output.path().display().to_string())
}

/// Where the picture goes. A name that promises another format is refused.
fn output(arguments: &SampleArguments) -> Result<Output, Failure> {
    let Some(path) = &arguments.out else {
        return Output::at("sample.png".as_ref(), "--out", ExistingFile::New);
    };
    let output = Output::at(path, "--out", arguments.there.on_exists)?;
    let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
    if extension.as_deref() != Some("png".as_ref()) {
        return Err(Failure::Input(format!(
            "`--out {}`: pictures are written as PNG; name it `{}`",
            path.display(),
            path.with_extension("png").display()
        )));
    }
    Ok(output)
}

/// Scores, one line per prompt and reward.
fn lines(prompts: &[Prompt], scores: &[RewardScores], count: usize) -> String {
    let mut text = String::new();
    for (row, prompt) in prompts.iter().enumerate() {
        for reward in scores {
            let values: Vec<String> = reward.values[row * count..(row + 1) * count]
                .iter()
                .map(|value| format!("{value:.3}"))
                .collect();
            text.push_str(&format!(
                "{}: {} {}\n",
                prompt.text,
                reward.name,
                values.join(" ")
            ));
        }
    }
    text
}
