//! Text scenarios: commands, `----`, and what they print. A file is rewritten with what is printed now
//! when `PHALANX_UPDATE_SCENARIOS=1`. An action that a file does not list fails its test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use support::play::{difference, play};

fn scenario(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap();
    let printed = play(&text);
    if std::env::var("PHALANX_UPDATE_SCENARIOS").as_deref() == Ok("1") {
        std::fs::write(&path, &printed).unwrap();
        return;
    }
    if let Some(difference) = difference(&text, &printed) {
        panic!("{name}.txt {difference}");
    }
}

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            scenario(stringify!($name));
        })+
    };
}

scenarios! {
    shares_that_move,
    what_starts_counts_once,
    never_fits_beside_guarantees,
    freed_room_counts_for_guarantees,
    case_062_idle_nodes_stay_usable,
    case_065_pods_of_two_sizes,
    admitted_on_credit,
    true_fixes_of_queues,
    two_that_lost_a_pod,
    evicted_for_keeps_its_quota,
    told_anew_after_a_preemption,
    story_f_without_preempt,
    story_e_restarting_job_and_urgent_ones,
    story_c_two_tenants,
    case_089_preemption_policy_never,
    case_088_disruption_budgets,
    case_063_the_blocker_has_no_gpu,
    case_061_admission_goes_to_the_urgent_one,
    case_060_phases_after_a_preemption,
    case_058_eviction_in_the_right_places,
    case_054_a_queue_above_its_share_takes_nothing,
    case_052_surplus_pods_reclaim_nothing,
    case_111_hold_that_ends_with_its_gang,
    case_010_small_jobs_do_not_starve_a_big_one,
    case_046_a_victim_that_does_not_die,
    case_045_no_more_evictions_while_victims_shut_down,
    case_044_a_gang_is_not_cut_below_its_minimum,
    case_041_impossible_job_at_the_head,
    case_018_freed_gpus_are_held,
    case_009_two_queues_do_not_reclaim_for_ever,
    case_008_no_more_than_needed_is_evicted,
    case_007_nothing_is_evicted_in_vain,
    case_006_one_idle_and_one_taken_node,
    one_gang_life,
    taints,
    cordons,
    node_affinity,
    preferred_affinity,
    host_ports,
    pod_count,
    scheduling_gates,
    case_084_claim_that_hangs_delays_nobody,
    claims,
    claims_of_one_pod,
    case_087_init_containers_and_sidecars,
    case_001_two_equal_gangs,
    case_005_not_enough_per_node,
    case_026_lease_outlives_waiting,
    case_028_same_node_twice,
    case_032_bind_error,
    case_033_silent_during_reservation,
    case_102_gpu_of_another_node,
    case_112_one_failing_item,
    case_116_strange_numbers,
    stress_gangs_first,
    stress_singles_first,
    stress_alternating,
    refusal_and_quarantine,
    silent_agent,
    silent_agent_dials_anew,
    binding_faults,
    bound_by_hand,
    store_fails,
    restart_in_every_phase,
    restart_findings,
    quota,
    order,
    elastic,
    gpu_lost,
    plain_nodes,
    agent_gone,
    node_churn,
    restart_node_away,
    driver_away,
    true_fixes,
    place_found_while_plan_waits,
    dropped_plan_of_an_earlier_leader,
    victim_that_went_unseen,
    growth,
    many_gpus,
    models,
    best_set,
    late_plans,
    lone_pods,
    late_reads,
    late_bindings,
    pods_that_never_come,
    turns_after_changes,
    two_coordinators,
    who_may_not_go,
    fences,
    full_disk_on_a_node,
    damaged_terms,
    earlier_leader_acts,
    later_leader,
    leases_of_strangers,
    too_few_of_a_task,
    group_deleted,
    lost_ledger,
    status_written_by_another,
    case_092_another_scheduler_uses_the_node,
    place_taken_by_another_scheduler,
    case_030_new_leader_stale_ledger,
    case_034_two_coordinators,
    case_002_fits_no_node_is_not_admitted,
    case_095_autoscaler_sees_the_right_pods,
    group_made_anew,
    nodes_without_object,
    names_of_resources,
    numbers_of_pods,
    case_099_groups_of_gangs,
    case_080_lost_for_good,
    case_077_min_resources,
    sub_groups,
    timed_minimum,
    startup_deadline,
    maximum_run,
    surplus_by_idle_gpus,
    case_003_ended_work_is_charged_to_nobody,
    case_012_reason_is_there_and_right,
    case_014_resource_that_is_not_named,
    case_015_ceiling_is_checked_as_fits,
    case_019_broken_gang_goes_before_a_fresh_one,
    case_022_one_wrong_queue_stops_no_other,
    case_024_ceiling_of_the_parent,
    case_051_strict_order,
    case_055_shares_by_weight_with_ceilings,
    case_056_group_of_the_old_name,
    case_072_sibling_that_wants_another_resource,
    case_076_gang_that_grows,
    case_077_minima_at_the_edge,
    case_079_members_that_end_early,
    case_096_ceiling_lowered_under_what_runs,
    case_097_use_is_taken_back_once,
    story_two_gangs_of_twenty,
    story_quota_in_an_idle_cluster,
    story_free_in_pieces,
    shares_by_weight,
    namespaces_of_queues,
    guarantees,
    closed_queues,
    plans_that_leave,
    replacement_not_bound,
    room_in_vain,
}
