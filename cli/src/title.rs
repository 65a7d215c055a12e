//! Names for people. A job's gang is called after the job and its UID, that of a bare pod after the
//! pod's UID; people know the job and the pod, and `why` takes those names.

use phalanx_core::view::GangView;

/// `team-a/training`: the job's, pod's or PodGroup's own name with the namespace.
#[must_use]
pub fn title(gang: &GangView) -> String {
    format!("{}/{}", gang.name.namespace, short_name(gang))
}

/// The same without the namespace.
#[must_use]
pub fn short_name(gang: &GangView) -> &str {
    let full = &*gang.name.name;
    match (without_uid(full), gang.pods.as_slice()) {
        (Some("podgroup"), [pod]) => &pod.name,
        (Some("podgroup"), _) | (None, _) => full,
        (Some(job), _) => job,
    }
}

/// `training` of `training-UID`.
fn without_uid(name: &str) -> Option<&str> {
    const UID_LENGTH: usize = 36;
    let (job, uid) = name.split_at_checked(name.len().checked_sub(UID_LENGTH + 1)?)?;
    let groups: Vec<usize> = uid.strip_prefix('-')?.split('-').map(str::len).collect();
    let digits = uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    (digits && groups == [8, 4, 4, 4, 12] && !job.is_empty()).then_some(job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::progress::tests::gang;

    #[test]
    fn uids_are_left_out() {
        let uid = "40c3d7df-1bd0-4111-923c-edac690a250d";
        let short = |name: &str| title(&gang(name, "running", 1));
        assert_eq!(short(&format!("llm-{uid}")), "team/llm");
        assert_eq!(short("plain"), "team/plain");
        assert_eq!(
            short(&format!("a-{}", uid.replace('c', "x"))),
            format!("team/a-{}", uid.replace('c', "x"))
        );
        let mut bare = gang(&format!("podgroup-{uid}"), "running", 1);
        bare.pods[0].name = "notebook".into();
        assert_eq!(title(&bare), "team/notebook");
        bare.pods.clear();
        assert_eq!(title(&bare), format!("team/podgroup-{uid}"));
    }
}
