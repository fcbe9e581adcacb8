//! New certificates come into force without a restart.

use crate::support::{DEADLINE, Lab, job, noise, write};
use weft_proto::agent::v1::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_authority_and_new_certificates_are_taken_up_while_a_call_goes_on() {
    let mut lab = Lab::new();
    let _agents = [lab.agent(0, "").await, lab.agent(1, "").await];
    write(&lab.root(0).join("model"), &noise(3 << 20, 1));
    let waiting = job("before", 1);
    let manifest = crate::support::stat(&mut lab.operator(0).await)
        .await
        .unwrap();
    let request = lab.prepare(&waiting, 1, &manifest);
    lab.operator(1).await.prepare(request).await.unwrap();
    let mut stream = lab.follow(1, &waiting).await;
    lab.renew(0..2);
    // The operator's own is of the new authority now; no agent took it before.
    for node in 0..2 {
        let _ = lab.operator(node).await;
    }
    // Agents show theirs to each other, too.
    write(&lab.root(0).join("model"), &noise(3 << 20, 2));
    let cancel = CancelRequest {
        attempt: Some(waiting),
        leader_epoch: 1,
        remove_partials: true,
        release_copies: false,
    };
    lab.operator(1).await.cancel(cancel).await.unwrap();
    for end in lab.run(&job("after", 1), &[(0, 1)]).await {
        assert_eq!(end.state(), State::Verified, "{end:?}");
    }
    // A call of before has gone on to its own end.
    let last = async {
        let mut last = None;
        while let Some(progress) = stream.message().await.unwrap() {
            last = Some(progress);
        }
        last.unwrap()
    };
    let last = tokio::time::timeout(DEADLINE, last).await.expect("it ends");
    assert_eq!(last.reason, "Cancelled");
}
