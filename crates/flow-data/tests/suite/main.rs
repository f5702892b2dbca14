//! Data sets, prompts and pictures: one program, for each is linked for longer than it is compiled.

mod buckets;
mod digits;
mod image;
mod images;
mod picture;
mod preferences;
mod prompt_list;
mod prompts_file;
mod shapes;
mod words;
