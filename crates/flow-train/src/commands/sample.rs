//! `sample`: images for prompts, as one picture, and on request each as one of its own.

mod folder;

use super::{CommandContext, config_report::ConfigUse, weights};
use crate::arguments::{ConfigArguments, ExistingFile, SampleArguments};
use crate::failure::{Failure, OrFailure};
use crate::output::{self, Output};
use crate::picture_size::PictureSize;
use crate::terminal;
use flow_data::{Dataset, FREE_PROMPT_ID, Prompt};
use flow_report::{ImageGrid, Tile};
use flow_rewards::{RewardError, RewardScores, RewardWorkers};
use flow_trainer::TrainError;
use flow_trainer::decoder::Decoded;
use flow_trainer::setup::{self, BuiltRewards, Environment, ScoredPrompts};
use std::path::{Path, PathBuf};

/// Generates, scores with the config's rewards if it has some, and writes the pictures.
pub fn run(arguments: &SampleArguments, quiet: bool) -> Result<(), Failure> {
    let files = Files::of(arguments)?;
    let place = weights::instead(&arguments.config, arguments.weights.as_deref());
    // What a config says is set; a diffusers folder has its own scheduler.
    let is_folder = place.config.is_dir();
    if let Some(scale) = arguments.true_cfg.filter(|_| !is_folder) {
        return Err(Failure::Input(format!(
            "`--true-cfg {scale}` is for a diffusers folder in the config's place: of a config `--guidance {scale}` is it \
             (`evaluation.guidance_scale`), and the scale that FLUX.1-dev embeds is `sampling.embedded_guidance_scale`"
        )));
    }
    let place = with_options(place, arguments, is_folder);
    let context = CommandContext::read(&place, ConfigUse::Inspection)?;
    let config = context.config();
    weights::expect(config)?;
    if arguments.gif && frames(&context)? == 1 {
        return Err(Failure::Input(
            "`--gif` is for videos, and this makes pictures; leave it out, or set `model.frames` if the model makes videos".into(),
        ));
    }
    let count = usize::from(arguments.count);
    if is_folder {
        let seed = arguments.seed.unwrap_or(config.evaluation.seed);
        context.compute(config, |environment| {
            let made = folder::make(config, environment, arguments, seed, quiet)?;
            let prompts: Vec<Prompt> = arguments
                .prompt
                .iter()
                .map(|text| Prompt::free(FREE_PROMPT_ID, text))
                .collect();
            files.write(&grid(&prompts, &made, None, count).or_failed()?, &made)
        })?;
        return files.say();
    }
    let text = context.compute(config, |environment| {
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
        let workers = workers(&context, environment, &*common.dataset, &prompts)?;
        let wanted: Vec<Prompt> = prompts
            .iter()
            .flat_map(|prompt| vec![prompt.clone(); count])
            .collect();
        let made = flow_trainer::sample(&common, &wanted, config.sampling.micro_batch).or_failed()?;
        for undone in common.shortfalls("sampling").or_failed()? {
            if !quiet {
                terminal::note(&format!("note: {undone}"));
            }
        }
        let scores = match workers {
            Some(workers) => scores(&workers, &wanted, &made, count)?,
            None => Vec::new(),
        };
        let scale = config.evaluation.grid.scale.max(1) as u32;
        let grid = grid(&prompts, &made, scores.first(), count)
            .map(|grid| grid.scale(scale))
            .or_failed()?;
        files.write(&grid, &made)?;
        Ok(lines(&prompts, &scores, count))
    })?;
    if !quiet {
        terminal::print(&text)?;
    }
    files.say()
}

/// Frames of what the model makes.
fn frames(context: &CommandContext) -> Result<usize, Failure> {
    let config = context.config();
    if config.model.path.is_none() {
        return Ok(1);
    }
    let pipeline = setup::pipeline(config, &context.base, &context.folders).or_bad_input()?;
    Ok(setup::folder_size(config, &pipeline).frames)
}

/// The config's place, with what the command's options say set in it.
fn with_options(mut place: ConfigArguments, arguments: &SampleArguments, is_folder: bool) -> ConfigArguments {
    let mut set = |key: &str, value: String| place.set.push(format!("{key}={value}"));
    if let Some(PictureSize { width, height }) = arguments.size {
        set("model.width", width.to_string());
        set("model.height", height.to_string());
    }
    if is_folder {
        // It has a sampler of its own, which reads the others.
        return place;
    }
    if arguments.size.is_some() {
        set("sampling.sizes", "[]".into());
        set("sampling.sizes_of_prompts", "false".into());
    }
    if let Some(steps) = arguments.steps {
        set("evaluation.steps", steps.to_string());
    }
    if let Some(scale) = arguments.guidance {
        set("evaluation.guidance_scale", scale.to_string());
    }
    if let Some(text) = &arguments.negative_prompt {
        let quoted = serde_json::Value::from(text.as_str()).to_string();
        set("text.negative_prompt", quoted);
    }
    place
}

/// The config's rewards, if it has some and they can score images of these prompts. Asked before images are made.
fn workers(
    context: &CommandContext,
    environment: &Environment<'_>,
    dataset: &dyn Dataset,
    prompts: &[Prompt],
) -> Result<Option<RewardWorkers>, Failure> {
    let rewards = context.config().effective_eval_rewards();
    if rewards.is_empty() {
        return Ok(None);
    }
    match setup::rewards(
        rewards,
        environment,
        ScoredPrompts { dataset, prompts },
        1,
        &mut BuiltRewards::default(),
    ) {
        Ok(parts) => Ok(Some(parts.workers)),
        Err(TrainError::Reward(error @ RewardError::Prompts { .. })) => {
            terminal::note(&format!("note: the images get no scores: {error}"));
            Ok(None)
        }
        Err(error) => Err(error).or_bad_input(),
    }
}

/// The scores of every image.
fn scores(
    workers: &RewardWorkers,
    wanted: &[Prompt],
    made: &[Decoded],
    count: usize,
) -> Result<Vec<RewardScores>, Failure> {
    let samples = wanted.iter().zip(made).enumerate();
    let samples = samples.map(|(index, (prompt, made))| made.clone().sample(prompt, (index / count) as u64));
    let scored = workers
        .submit(samples.collect(), 0)
        .and_then(|ticket| ticket.wait())
        .or_failed()?;
    Ok(scored.rewards)
}

/// A row for each prompt, each image with its score.
fn grid(
    prompts: &[Prompt],
    made: &[Decoded],
    scores: Option<&RewardScores>,
    count: usize,
) -> Result<ImageGrid, flow_report::ReportError> {
    let mut grid = ImageGrid::new();
    for (row, prompt) in prompts.iter().enumerate() {
        let of_row = row * count..(row + 1) * count;
        let tiles = made[of_row.clone()].iter().zip(of_row).map(|(made, index)| {
            let image = made.picture();
            let tile = Tile::new(image.channels, image.height, image.width, image.pixels_chw)?;
            Ok(match scores {
                Some(scores) => tile.label(format!("{:.2}", scores.values[index])),
                None => tile,
            })
        });
        let tiles = tiles.collect::<Result<_, flow_report::ReportError>>()?;
        grid.row(prompt.text.clone(), tiles);
    }
    Ok(grid)
}

/// The files that are written.
struct Files {
    /// All images in one picture.
    grid: Output,
    /// Every image in a picture of its own, prompt by prompt; empty if nobody asks for them.
    each: Vec<Output>,
}

impl Files {
    /// Where the pictures go. A name that promises another format is refused.
    fn of(arguments: &SampleArguments) -> Result<Self, Failure> {
        let (path, policy) = match &arguments.out {
            Some(path) => (path.as_path(), arguments.there.on_exists),
            None => (Path::new("sample.png"), ExistingFile::New),
        };
        let pictures = |grid: &Path| match arguments.each {
            true => each(grid, arguments),
            false => Vec::new(),
        };
        // What is no name for a file is said before what is no name for a picture.
        let free = |path: &Path| Output::at(path, "--out", policy);
        let mut grid = free(path)?;
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        if extension.as_deref() != Some("png".as_ref()) {
            return Err(Failure::Input(format!(
                "`--out {}`: pictures are written as PNG; name it `{}`",
                path.display(),
                path.with_extension("png").display()
            )));
        }
        if policy == ExistingFile::New {
            grid = free(&output::free_with(path, pictures))?;
        }
        let each = pictures(grid.path());
        let each = each.iter().map(|path| free(path)).collect::<Result<_, _>>()?;
        Ok(Self { grid, each })
    }

    /// Names the files on standard output.
    fn say(&self) -> Result<(), Failure> {
        for file in self.each.iter().chain([&self.grid]) {
            terminal::line(&file.path().display().to_string())?;
        }
        Ok(())
    }

    /// Writes the grid, and its images one by one, a pixel of the image as a pixel of the picture; videos as animated PNG or GIF.
    fn write(&self, grid: &ImageGrid, made: &[Decoded]) -> Result<(), Failure> {
        let write = |output: &Output, picture: &flow_report::Picture| {
            output.make_room_and_say()?;
            flow_report::atomic_write(output.path(), "picture", |out| out.write_all(&picture.png)).or_failed()
        };
        let pictures = match self.each.is_empty() {
            true => Vec::new(),
            false => grid.each(1).or_failed()?,
        };
        write(&self.grid, &grid.picture().or_failed()?)?;
        for ((output, (_, _, picture)), made) in self.each.iter().zip(&pictures).zip(made) {
            match made.video().or_failed()? {
                Some(video) => {
                    output.make_room_and_say()?;
                    video.write(output.path()).or_failed()?;
                }
                None => write(output, picture)?,
            }
        }
        Ok(())
    }
}

/// The files of the single images beside `grid`: `a-prompt-001-sample-001.png`, numbered from 1 with as many digits as keep
/// them in order, three at least; `.gif` if that is asked for.
fn each(grid: &Path, arguments: &SampleArguments) -> Vec<PathBuf> {
    let (prompts, count) = (arguments.prompt.len(), usize::from(arguments.count));
    let grid = match arguments.gif {
        true => grid.with_extension("gif"),
        false => grid.to_owned(),
    };
    let digits = |most: usize| most.to_string().len().max(3);
    let (of_prompt, of_sample) = (digits(prompts), digits(count));
    let name = |prompt: usize, sample: usize| {
        output::with_stem_end(
            &grid,
            &format!("-prompt-{prompt:0of_prompt$}-sample-{sample:0of_sample$}"),
        )
    };
    let all = (1..=prompts).flat_map(|prompt| (1..=count).map(move |sample| (prompt, sample)));
    all.map(|(prompt, sample)| name(prompt, sample)).collect()
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
