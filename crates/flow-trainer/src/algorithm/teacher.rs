//! Teachers: frozen models that a distillation learns from, and which of them teaches a prompt.

use flow_core::InferencePass;
use flow_data::Prompt;
use std::path::PathBuf;

/// The key of a prompt's metadata that names its teacher, where there are several.
pub const TEACHER_KEY: &str = "teacher";

/// A frozen model of the run's architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Teacher {
    /// Its name, in errors and in the metadata of prompts.
    pub name: String,
    /// The files that its weights are of.
    pub source: TeacherSource,
    /// Its guidance scale; without one that of the rollout.
    pub guidance_scale: Option<f64>,
}

/// Where a teacher's weights are from; relative paths start at the folder of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeacherSource {
    /// A LoRA, over the weights that the run begins from.
    Adapter(PathBuf),
    /// All weights of the model.
    Weights(PathBuf),
}

/// A teacher at the place of a loss, with the rows that it teaches.
#[derive(Debug)]
pub struct Taught<'w> {
    /// Its place among [`Algorithm::teachers`](super::Algorithm::teachers).
    pub teacher: usize,
    /// Its weights, not differentiated.
    pub pass: InferencePass<'w>,
    /// One flag per row: whether it is this teacher's. At least one is.
    pub rows: Vec<bool>,
}

/// The place among `teachers` of the one that teaches a prompt: the only one, or the one that the prompt's metadata names.
///
/// # Errors
/// What is wrong with what the prompt says, in words, if there are several and it names none of them.
pub fn teacher_of(teachers: &[Teacher], prompt: &Prompt) -> Result<usize, String> {
    if teachers.len() == 1 {
        return Ok(0);
    }
    let names = || {
        let names: Vec<String> = teachers.iter().map(|it| format!("`{}`", it.name)).collect();
        names.join(", ")
    };
    let Some(said) = prompt.metadata.get(TEACHER_KEY) else {
        return Err(format!(
            "it has no `{TEACHER_KEY}`, and with several `algorithm.teachers` each prompt names its own; there are {}",
            names()
        ));
    };
    let named = said.as_str();
    let place = teachers.iter().position(|it| Some(it.name.as_str()) == named);
    place.ok_or_else(|| {
        let nearest = flow_registry::nearest(
            named.unwrap_or_default(),
            teachers.iter().map(|it| it.name.as_str()),
        );
        let nearest = nearest.map_or_else(String::new, |near| format!("; the nearest is `{near}`"));
        format!(
            "its `{TEACHER_KEY}` is {said}, and `algorithm.teachers` has {}{nearest}",
            names()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teachers(names: &[&str]) -> Vec<Teacher> {
        let of = |name: &&str| Teacher {
            name: (*name).to_owned(),
            source: TeacherSource::Adapter(PathBuf::from(name)),
            guidance_scale: None,
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn the_only_teacher_teaches_every_prompt_and_of_several_the_one_that_is_named() {
        let mut prompt = Prompt::free(0, "a cat");
        assert_eq!(teacher_of(&teachers(&["one"]), &prompt), Ok(0));
        let both = teachers(&["sketch", "photo"]);
        let missing = teacher_of(&both, &prompt).expect_err("it names none");
        assert!(missing.contains("`sketch`, `photo`"), "{missing}");
        prompt.metadata.insert(TEACHER_KEY.into(), "photo".into());
        assert_eq!(teacher_of(&both, &prompt), Ok(1));
        prompt.metadata.insert(TEACHER_KEY.into(), "phot".into());
        let other = teacher_of(&both, &prompt).expect_err("there is none of that name");
        assert!(
            other.contains("\"phot\"") && other.contains("the nearest is `photo`"),
            "{other}"
        );
    }
}
