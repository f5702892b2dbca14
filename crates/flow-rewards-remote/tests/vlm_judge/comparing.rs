//! Images of a group that are compared two by two.

use crate::common::{Received, Reply, Server, images, samples};
use crate::{close, failure, judge, listed, settings, shown};
use flow_rewards::{Reward, RewardKind};
use flow_rewards_remote::VlmJudgeSettings;
use std::collections::BTreeMap;

/// A server that prefers the brighter one of two images, and the first one a little, whatever it shows.
fn prefers(received: &Received) -> Reply {
    let both = shown(received);
    assert_eq!(both.len(), 2);
    let first = 0.55 + 0.4 * (both[0] - both[1]);
    Reply::ok(listed(&[
        ("first", first * 0.9),
        ("second", (1.0 - first) * 0.9),
        ("It", 0.1),
    ]))
}

fn comparing(server: &Server, opponents: usize) -> VlmJudgeSettings {
    VlmJudgeSettings {
        compare: true,
        opponents,
        answers: BTreeMap::from([("first".to_owned(), 1.0), ("second".to_owned(), 0.0)]),
        ..settings(&[server])
    }
}

#[test]
fn images_of_a_group_are_compared_two_by_two_in_both_orders() {
    let made = images(5);
    let bright: Vec<f64> = made.iter().map(|made| f64::from(made.brightness())).collect();
    // The liking for the first place is gone: it is as often for an image as against it.
    let expected = |opponents: &dyn Fn(usize) -> Vec<usize>| -> Vec<f32> {
        let score = |image: usize| {
            let others = opponents(image);
            let won = others
                .iter()
                .map(|other| 0.5 + 0.4 * (bright[image] - bright[*other]));
            (won.sum::<f64>() / others.len() as f64) as f32
        };
        (0..5).map(score).collect()
    };
    let all = |image: usize| -> Vec<usize> { (0..5).filter(|other| *other != image).collect() };
    let neighbours = |image: usize| vec![(image + 1) % 5, (image + 4) % 5];
    for requests_per_server in [1, 3, 8] {
        let server = Server::start(prefers);
        let reward = judge(VlmJudgeSettings {
            requests_per_server,
            ..comparing(&server, 0)
        });
        assert_eq!(
            (reward.kind(), reward.range()),
            (RewardKind::Groupwise, (0.0, 1.0))
        );
        close(&reward.score(&samples(&made)).unwrap(), &expected(&all), 1e-5);
        assert_eq!(server.received().len(), 20);
    }
    let server = Server::start(prefers);
    let reward = judge(comparing(&server, 2));
    close(
        &reward.score(&samples(&made)).unwrap(),
        &expected(&neighbours),
        1e-5,
    );
    assert_eq!(server.received().len(), 10);
}

#[test]
fn an_image_without_another_is_not_compared_and_a_bad_answer_names_the_image() {
    let server = Server::start(prefers);
    let (index, problem) = failure(&judge(comparing(&server, 0)), &images(1));
    assert!(index == 0 && problem.contains("no other image"), "{problem}");
    assert_eq!(server.received().len(), 0);
    let other = Server::start(|_| Reply::ok(listed(&[("Both", 0.9), ("first", 0.05)])));
    let (_, problem) = failure(&judge(comparing(&other, 0)), &images(3));
    assert!(problem.contains("`Both` 0.900"), "{problem}");
}
