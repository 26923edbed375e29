//! The meaning of the store traits, executable: one suite that every backend runs.
//!
//! A backend implements [`Backend`] and writes `switchboard_store_conformance::suite!(pg, PgBackend);`
//! in its integration tests; every case then appears by name, such as `pg::runs::lease_skips_leased`.
//! The cases know the traits only, never a backend.
//!
//! A case is a `pub(crate)` function of its module and a name in the list below. One that is missing
//! from the list is dead code, which the lints refuse; one that is listed twice does not compile.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "every line of this crate is test code")]

mod accounts;
mod backend;
mod fixtures;

mod account_races;
mod adoption;
mod api_keys;
mod append_once;
mod audit;
mod auth_sessions;
mod bulk;
mod call_races;
mod calls;
mod cancel;
mod clock;
mod connections;
mod context;
mod dedupe;
mod edits;
mod feed;
mod fire;
mod hostile;
mod instances;
mod lease_races;
mod lease_requests;
mod leases;
mod limits;
mod occurrences;
mod once_keys;
mod once_races;
mod paced;
mod permits;
mod pool_limits;
mod pool_room;
mod presence;
mod races;
mod recover;
mod redrive;
mod retention;
mod room_races;
mod rooms;
mod run_races;
mod runs;
mod sealed;
mod secrets;
mod settings;
mod signing;
mod start_deadline;
mod state;
mod state_races;
mod stream_races;
mod streams;
mod sweeps;
mod tasks;
mod tickets;
mod tokens;
mod upkeep;
mod users;
mod webhooks;

pub use backend::Backend;

macro_rules! cases {
    // The first token is a `$`, with which the inner macro is written.
    ($dollar:tt $($module:ident { $($case:ident),+ $(,)? })+) => {
        /// Every case, each on a fresh database of the backend `B`.
        pub mod cases {
            $(
                #[doc = concat!("The cases of `", stringify!($module), "`.")]
                pub mod $module {
                    $(
                        #[doc = concat!("Runs `", stringify!($case), "`.")]
                        pub async fn $case<B: $crate::Backend>() {
                            let backend = B::create().await;
                            Box::pin($crate::$module::$case(&backend)).await;
                            backend.close().await;
                        }
                    )+
                }
            )+
        }

        /// Declares the tests of a backend: `suite!(name, Type)`, with `Type` in scope, makes a module
        /// `name` with one test per case.
        #[macro_export]
        macro_rules! suite {
            ($dollar name:ident, $dollar backend:ident) => {
                mod $dollar name {
                    $(
                        mod $module {
                            use super::super::$dollar backend;

                            $(
                                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                                async fn $case() {
                                    $crate::cases::$module::$case::<$dollar backend>().await;
                                }
                            )+
                        }
                    )+
                }
            };
        }
    };
}

cases! { $
    tasks {
        a_created_task_reads_back_as_it_was_given, creation_arms_the_schedule_and_anchors_it,
        names_are_unique_among_tasks_that_are_not_deleted, a_refused_definition_names_its_field_and_stores_nothing,
        an_edit_needs_the_version_that_was_read, an_edit_cannot_take_the_name_of_another_task,
        an_edit_moves_the_next_occurrence_only_if_schedule_or_policy_changed,
        a_schedule_given_without_an_anchor_keeps_the_one_it_had, a_pause_is_recorded_as_one_skipped_range,
        pausing_twice_and_resuming_twice_change_nothing, a_paused_task_can_be_triggered,
        a_deleted_task_is_gone_but_its_active_runs_go_on, lists_go_through_all_tasks_in_the_order_of_creation,
    }
    fire {
        due_returns_the_longest_due_first_and_nothing_early, a_plan_inserts_its_runs_and_skips_and_advances_the_task,
        a_plan_takes_effect_once, an_occurrence_that_has_a_run_gets_no_second_one,
        plans_of_tasks_that_changed_are_dropped_and_the_others_applied,
        a_task_without_a_next_occurrence_is_deactivated, a_due_task_fires_by_its_own_schedule,
        overlap_allow_inserts_beside_active_runs, overlap_skip_admits_one_run_and_records_the_rest,
        overlap_queue_inserts_up_to_its_maximum, overlap_replace_cancels_active_runs_and_keeps_the_last,
        skipped_ranges_are_listed_newest_first,
    }
    runs {
        a_triggered_run_is_queued_with_what_it_was_given, triggering_an_unknown_task_makes_nothing,
        a_delayed_run_becomes_ready_when_it_is_due, an_active_run_with_the_same_dedupe_key_is_found,
        the_overlap_policy_governs_triggers, lease_hands_out_all_a_worker_needs, lease_skips_leased,
        lease_goes_by_priority_then_due_time, lease_serves_the_asked_pools_only,
        lease_gives_nothing_while_the_fleet_is_paused, renew_prolongs_live_leases_in_order,
        an_expired_lease_cannot_be_renewed, endings_lead_to_their_states, finish_with_a_stale_fence_changes_nothing,
        a_retry_waits_until_attempts_are_used_up, a_released_run_gets_its_attempt_back, an_ended_run_can_be_retried,
        a_retry_respects_overlap_and_dedupe_keys, lists_are_filtered_and_newest_first,
        runs_of_one_firing_are_leased_oldest_occurrence_first,
    }
    bulk {
        many_runs_are_made_in_order_each_seeing_the_ones_before, policies_hold_within_one_request_too,
        a_repeated_request_for_many_runs_is_replayed, a_request_that_makes_nothing_keeps_nothing,
        ten_thousand_runs_of_many_tasks_are_made_at_once, a_full_queue_refuses_thousands_at_once,
        many_tasks_are_created_in_order_each_seeing_the_ones_before, a_repeated_request_for_many_tasks_is_replayed,
        planning_many_schedules_holds_nobody_up, racing_requests_for_the_same_keys_agree,
    }
    dedupe {
        a_key_for_ever_outlives_its_run, a_key_for_ever_counts_within_one_request,
        a_refused_run_keeps_no_key_for_ever, equal_triggers_for_ever_make_one_run, a_key_for_ever_goes_with_its_task,
    }
    redrive {
        ended_runs_are_queued_again_oldest_first_in_pages, a_redrive_respects_overlap_and_dedupe_keys,
        a_redrive_follows_the_action_of_the_task_and_signals_once,
    }
    edits {
        a_run_that_is_made_beside_an_edit_goes_by_one_definition, every_field_moves_the_next_occurrence_or_does_not,
        what_was_due_at_an_edit_is_recorded_as_missed, a_resume_follows_the_missed_policy,
        a_pause_under_another_schedule_loses_nothing, a_schedule_that_is_over_stays_paused,
        active_runs_follow_an_action_of_external_workers, an_unarmed_task_is_armed_again,
        a_deleted_task_leaves_when_nothing_refers_to_it,
    }
    occurrences {
        runs_and_skips_of_a_range_are_found, a_range_grows_under_the_same_schedule_only,
        fourteen_days_down_are_complete_under_each_policy, what_is_past_its_start_deadline_is_not_started,
    }
    adoption {
        a_run_that_has_not_started_adopts_further_messages, a_run_that_somebody_else_asked_for_adopts_too,
        a_waiting_run_adopts, a_running_run_refuses_and_keeps_no_claim, other_policies_adopt_nothing,
        equal_deliveries_make_one_run, different_messages_at_once_share_one_run,
        an_adopted_message_is_carried_out_by_a_run_that_starts_later,
    }
    permits {
        a_key_admits_its_maximum_and_the_rest_wait, runs_without_a_key_pass_those_that_wait,
        every_ending_frees_the_permit_for_the_oldest_waiting_run, a_death_frees_the_permit,
        a_released_permit_can_be_taken_again, an_expired_lease_keeps_its_permit_until_it_is_recovered,
        a_key_is_shared_by_tasks_and_the_maximum_is_the_runs_own, an_edited_maximum_holds_for_new_runs,
        waiting_runs_are_promoted_by_priority_then_age, overlap_holds_one_run_at_a_time,
        overlap_is_held_through_back_off, other_keys_are_free_during_back_off,
        overlap_is_held_through_recovery_and_release, cancelling_a_run_in_back_off_frees_its_overlap_hold,
        cancelling_a_waiting_run_leaves_the_holder_alone, a_retried_run_competes_for_its_permit_again,
        delayed_runs_take_no_permit_before_they_are_leased,
    }
    pool_limits {
        a_lease_of_an_external_worker_ends_with_the_time_of_the_attempt,
        other_leases_hold_as_long_as_they_were_asked_for, a_pool_leases_no_more_than_its_maximum,
        a_maximum_of_zero_pauses_a_pool, a_limited_pool_stands_in_nobodys_way,
        only_external_workers_are_given_runs_to_pull, workers_of_both_kinds_share_the_maximum,
        leasers_never_exceed_the_maximum_of_a_pool,
    }
    pool_room {
        room_that_an_external_worker_leaves_is_signalled_to_those_who_wait, a_pool_without_a_maximum_is_not_signalled,
        a_replica_tells_only_external_workers_of_the_room_it_leaves, room_that_a_lost_run_leaves_is_signalled,
    }
    upkeep {
        upkeep_goes_on_while_the_fleet_is_paused,
    }
    signing {
        runs_of_a_deleted_task_are_signed_as_long_as_there_are_any, a_task_that_has_no_runs_takes_its_secrets_along,
    }
    paced {
        a_rate_limit_holds_runs_back, a_run_that_waits_for_nothing_waits_for_no_rate,
        paced_runs_all_run_in_their_order, each_lease_takes_a_unit, a_key_is_shared_by_tasks_with_their_own_rates,
        promotion_lets_no_more_go_than_the_limit_allows, nobody_overtakes_those_that_wait,
        a_pool_that_nobody_serves_keeps_no_other_waiting, a_run_held_back_leaves_its_permit_to_the_next,
        a_waiting_run_can_be_cancelled_whatever_it_waits_for, delayed_runs_take_their_unit_when_they_start,
        leasers_together_keep_to_the_rate_in_every_window, thousands_that_wait_cost_a_pass_only_what_goes_on,
    }
    start_deadline {
        a_run_that_comes_too_late_is_cancelled, the_deadline_counts_from_when_the_run_is_due,
        the_first_lease_ends_the_deadline, runs_that_wait_come_too_late_as_well,
        a_permit_passes_by_those_that_come_too_late, a_retried_run_can_start_again,
        a_run_is_leased_in_time_or_cancelled_but_not_both,
    }
    lease_requests {
        a_repeated_request_is_given_the_same_runs, a_repetition_gives_what_still_holds,
        an_expired_lease_is_not_given_again, an_empty_answer_is_no_answer_for_ever,
        equal_requests_at_once_are_given_one_batch, an_end_that_is_reported_again_is_known,
        one_batch_may_report_a_lease_twice, a_mixed_batch_of_endings_leads_each_run_to_its_state,
        recovery_raises_the_fence, late_repeated_and_recovered_ends_agree,
    }
    retention {
        a_run_is_kept_as_long_as_its_task_said, every_end_starts_the_retention, a_run_that_is_retried_is_kept,
        a_batch_deletes_no_more_than_it_is_asked, a_sweep_of_keys_disturbs_no_permit,
    }
    cancel {
        a_run_that_has_not_started_is_cancelled_at_once, the_holder_of_a_running_run_is_asked_to_stop,
        work_that_was_done_despite_the_request_counts, a_run_to_be_cancelled_gets_no_further_attempt,
        recovering_a_run_to_be_cancelled_cancels_it,
    }
    clock {
        tasks_become_due_by_the_set_time, delays_and_back_off_go_by_the_set_time,
        pauses_and_resumes_go_by_the_set_time,
    }
    recover {
        an_expired_run_is_queued_again_and_knows_it, a_run_that_lost_its_last_attempt_is_dead,
        runs_past_their_deadline_are_counted_apart, live_leases_are_left_alone,
        recovery_takes_at_most_what_it_is_asked, a_late_finish_is_accepted_until_somebody_recovers,
    }
    sweeps {
        old_runs_that_ended_are_deleted_in_batches, a_run_in_back_off_has_not_ended, old_skipped_ranges_are_deleted,
    }
    rooms {
        a_created_room_reads_back_and_its_name_is_taken, rooms_are_listed_by_name,
        appended_events_follow_the_order_of_the_batch, rooms_of_users_and_pairs_are_made_by_their_first_event,
        a_refused_event_does_not_disturb_its_neighbours, a_given_message_id_is_appended_once_per_room_and_sender,
        events_without_a_given_id_are_never_duplicates, history_pages_follow_each_other,
        history_pages_are_bounded_in_bytes, retention_by_count_keeps_the_newest, retention_by_bytes_keeps_what_fits,
        retention_by_age_can_empty_a_room, tops_leave_out_missing_rooms, a_room_that_is_made_again_has_another_epoch,
        replicas_agree_on_the_epoch,
    }
    append_once {
        a_repeated_batch_is_answered_as_the_first, without_a_once_key_every_batch_is_new,
        a_batch_that_was_refused_as_a_whole_keeps_no_claim, a_batch_without_events_keeps_its_claim,
        message_ids_are_deduplicated_under_a_once_key_too, the_audit_entry_goes_with_the_events,
        equal_keys_at_once_append_once, an_abandoned_batch_is_appended_once_or_can_be_again,
        batches_of_rooms_in_opposite_order_do_not_block_each_other,
    }
    feed {
        a_first_tick_and_a_foreign_cursor_ask_for_a_resync, a_tick_from_the_same_cursor_reads_the_same,
        signals_without_a_body_are_folded, signals_with_a_body_come_one_by_one_in_order,
        every_replica_reads_every_signal, task_writes_signal_the_task, runs_that_become_ready_signal_their_pool,
        a_freed_permit_signals_the_pool_of_the_promoted_run, a_request_to_cancel_signals_the_run,
        room_writes_signal_the_room, administration_signals_what_it_changed,
        only_what_ends_before_its_time_is_signalled_as_revoked, next_due_is_nothing_in_an_empty_database,
        next_due_names_the_earliest_of_each_kind, a_sweep_keeps_what_readers_may_still_need,
        a_write_raises_a_hint_where_hints_arrive,
    }
    calls {
        a_call_is_offered_to_the_newest_connection, a_call_that_nobody_can_take_fails_at_once,
        a_call_that_waits_is_offered_to_the_connection_that_comes,
        an_offer_that_is_not_taken_goes_to_the_next_and_around, connections_of_dead_replicas_are_passed_over,
        the_first_claim_has_the_call, an_answer_is_taken_once_from_the_holder_of_the_token,
        a_client_can_answer_that_it_could_not, a_call_expires_at_its_deadline, a_batch_moves_no_more_than_it_is_asked,
        a_repeated_request_for_a_call_is_replayed, next_due_names_the_offer_and_then_the_deadline,
        a_new_connection_learns_of_what_nobody_has_claimed, calls_that_ended_are_forgotten_after_their_time,
        the_offers_of_one_user_are_bounded_and_hide_no_other,
    }
    call_races {
        parallel_claims_have_one_winner, parallel_claims_of_one_connection_get_one_token, parallel_answers_count_once,
        replicas_move_an_offer_once, a_claim_and_a_move_at_the_same_time_agree,
        a_call_that_waits_does_not_miss_who_comes_at_the_same_time,
    }
    users {
        a_made_user_reads_back_and_can_sign_in, a_user_of_another_issuer_has_no_password, names_and_ids_are_unique,
        an_edit_needs_the_version_that_was_read, an_edit_without_a_change_keeps_the_version,
        another_role_ends_all_sessions_and_tickets, disabling_ends_all_sessions_and_tickets,
        a_new_password_ends_all_sessions_but_the_kept_one,
        a_password_is_rehashed_only_over_the_hash_that_was_verified, a_deleted_user_leaves_nothing_behind,
        users_are_listed_in_the_order_of_their_ids,
    }
    auth_sessions {
        a_started_session_reads_back, nobody_who_is_disabled_or_unknown_signs_in,
        a_password_that_was_replaced_meanwhile_opens_nothing, a_password_change_needs_what_it_was_decided_on,
        each_refresh_token_is_succeeded_by_the_next, a_lost_answer_can_be_asked_for_again,
        an_unused_successor_is_replaced_by_another_one, a_token_two_generations_old_ends_the_session,
        an_expired_session_is_invalid, a_refresh_prolongs_a_session_but_not_beyond_its_end,
        an_ended_session_takes_its_tickets_along, all_sessions_but_one_can_be_ended,
        sessions_are_listed_in_the_order_of_their_start, revoked_credentials_are_told_from_those_that_work,
        thousands_of_credentials_are_asked_about_at_once, sweep_forgets_sessions_that_ended_by_themselves,
    }
    api_keys {
        a_key_is_found_by_its_hash, the_same_key_can_be_installed_by_two_replicas, an_expired_key_is_not_valid,
        a_revoked_key_is_not_valid_and_is_revoked_once, keys_are_listed_oldest_first,
        a_revoked_key_takes_its_tickets_along,
    }
    tickets {
        a_ticket_is_burned_once_with_all_it_carried, an_expired_ticket_is_refused_and_gone,
        sweep_deletes_expired_tickets_only, a_ticket_knows_what_it_hangs_on,
    }
    instances {
        a_registered_replica_is_listed_as_it_announced_itself, replicas_are_listed_oldest_first_until_they_leave,
        a_live_lease_can_be_prolonged, an_expired_replica_is_gone_for_good,
        a_pool_with_queued_runs_and_no_live_worker_is_uncovered,
    }
    connections {
        sockets_are_listed_until_they_close, one_batch_admits_no_more_than_the_limit,
        replicas_together_admit_no_more_than_the_limit, sockets_of_a_dead_replica_do_not_count,
        a_replica_that_leaves_takes_its_sockets_along, comings_and_goings_signal_their_users,
        a_kick_is_signalled_and_recorded, a_replica_finds_out_which_of_its_sockets_were_kicked,
    }
    presence {
        a_user_is_present_once_whatever_their_sockets, what_changes_nothing_signals_nothing,
        the_last_change_of_a_batch_counts, who_loses_a_socket_stays_for_the_grace,
        who_comes_back_in_time_has_never_left, a_dead_replica_takes_its_people_along_at_once,
        a_socket_that_is_gone_enters_nothing, entering_and_closing_at_once_leave_nobody_for_ever,
        a_large_room_tells_its_number_only,
    }
    secrets {
        a_secret_reads_back_as_it_was_sealed, a_secret_is_set_over_the_expected_version_and_for_its_identity_only,
        secrets_are_listed_by_name_and_deleted_by_it, racing_writers_of_a_new_secret_make_one,
    }
    sealed {
        values_of_every_table_go_from_one_key_to_another, a_value_that_changes_meanwhile_is_left_as_it_is,
        values_of_an_unknown_form_are_counted_and_found, replicas_that_seal_anew_together_do_each_value_once,
        the_key_that_was_promoted_last_is_the_first_canary,
    }
    tokens {
        a_token_reads_back_as_it_was_set, one_of_many_may_ask_the_provider,
        whoever_dies_on_the_way_is_followed_after_the_lease, a_failure_makes_all_wait_and_a_success_forgets_it,
        a_token_that_was_set_meanwhile_is_not_overwritten,
    }
    settings {
        fleet_settings_start_as_defaults_with_version_zero, put_writes_only_over_the_expected_version,
    }
    webhooks {
        a_task_has_secrets_newest_first, a_secret_needs_a_task, secrets_stay_with_a_task_that_is_renamed,
        an_expired_secret_works_no_more_but_is_listed, only_so_many_secrets_work_at_once,
        a_deleted_secret_works_no_more, sweep_deletes_expired_secrets_and_those_of_deleted_tasks,
        racing_additions_keep_the_maximum, a_secret_serves_its_own_purpose_only,
    }
    limits {
        the_burst_comes_at_once_and_says_what_is_left, all_replicas_share_a_key, waiting_as_long_as_told_is_enough,
        a_denial_changes_nothing, more_than_the_burst_is_never_there, a_changed_rate_holds_at_once,
        the_greatest_rates_and_costs_are_decided, several_keys_are_taken_all_or_none, sweep_forgets_unused_keys_only,
        replicas_together_allow_no_more_than_the_rate, replicas_take_several_keys_all_or_none,
    }
    leases {
        a_lease_is_held_by_one, a_renewal_prolongs_from_now_on, an_expired_lease_is_nobodys,
        a_released_lease_is_free_at_once, the_newest_seizes, leases_are_listed_by_key,
    }
    lease_races {
        of_many_that_acquire_one_wins, of_many_that_take_an_expired_lease_one_wins, holders_exclude_each_other,
        of_many_that_seize_the_newest_has_it, work_outlives_the_length_of_its_lease,
        work_is_stopped_when_its_lease_is_taken_away, a_lease_is_given_back_however_its_work_ends,
    }
    once_keys {
        a_key_that_one_replica_claims_is_completed_on_another, a_key_stands_for_one_request_in_its_scope,
        what_became_of_a_lost_claim_is_unknown_until_somebody_says,
        a_late_completion_counts_unless_somebody_took_over, an_abandoned_key_can_be_claimed_again,
        a_completed_key_is_consumed_once, a_key_is_forgotten_after_its_time,
    }
    once_races {
        of_parallel_claims_one_is_new, of_parallel_consumers_one_gets_it, of_parallel_takers_one_has_a_lost_claim,
        effects_under_keys_happen_once,
    }
    state {
        a_value_comes_back_byte_for_byte, a_change_needs_what_it_expects, no_version_comes_again,
        a_value_whose_time_is_over_is_gone, keys_are_listed_by_their_start, a_namespace_holds_no_more_than_its_quota,
        each_change_is_signalled_and_no_refusal, sweep_deletes_what_is_over_and_counts_it,
    }
    state_races {
        one_of_many_changes_of_a_version_wins, no_change_by_compare_and_set_is_lost,
        writers_together_keep_to_the_quota, versions_follow_the_order_in_which_changes_are_seen,
    }
    streams {
        an_opened_stream_reads_back_as_it_was_given, a_repeated_opening_is_answered_with_the_same_fence,
        chunks_come_back_byte_for_byte, a_repeated_append_adds_nothing, a_hole_is_refused,
        an_end_comes_with_its_last_chunk_and_is_final, a_new_producer_fences_the_old_one,
        a_run_goes_on_where_its_last_attempt_stopped, many_streams_are_written_in_one_commit,
        pages_are_bounded_in_chunks_and_bytes, what_is_too_large_is_refused_as_a_whole, a_stop_reaches_the_producer,
        a_silent_producer_is_lost, growth_is_signalled_once_and_leases_not_at_all, streams_are_listed_newest_first,
        old_streams_are_deleted_in_batches, an_ended_output_is_not_opened_again_by_its_own_fence,
        runs_are_waited_for_until_they_write_or_end,
    }
    stream_races {
        of_two_producers_only_the_new_one_writes, an_abandoned_append_is_repeated_without_a_trace,
        readers_never_see_an_end_without_its_last_chunk, batches_in_opposite_order_do_not_block_each_other,
        equal_openings_of_a_run_agree_on_one_stream, interrupters_and_late_appends_agree_on_one_end,
        chunks_without_a_number_are_all_kept,
    }
    audit {
        an_entry_reads_back_as_it_was_written, every_administrative_write_leaves_its_entry,
        what_was_not_done_leaves_no_entry, entries_are_found_by_what_they_say, entries_are_found_by_their_time,
        pages_go_both_ways, sweep_deletes_old_entries_in_batches,
    }
    context {
        a_repeated_task_creation_is_replayed, a_repeated_trigger_is_replayed_also_after_the_run_ended,
        repeated_rooms_and_keys_are_replayed, repeated_users_and_secrets_are_replayed,
        a_repeated_ticket_is_not_shown_again, scopes_separate_equal_keys, a_refusal_keeps_no_claim,
        an_expired_claim_is_overwritten, sweep_forgets_expired_claims_only, a_lost_race_on_a_name_leaves_no_signal,
    }
    hostile {
        payloads_come_back_byte_for_byte, inputs_and_results_come_back_byte_for_byte,
        payloads_of_actions_come_back_byte_for_byte, error_texts_are_cleaned_and_bounded, counters_go_beyond_32_bits,
        a_run_may_have_a_million_attempts, centuries_of_delay_are_kept, names_are_stored_as_they_are,
        clients_may_call_themselves_anything, the_audit_log_takes_any_text, keys_of_limits_may_be_any_text,
        the_longest_names_of_users_are_kept, a_cursor_that_was_not_made_here_is_refused_or_harmless,
    }
    races {
        equal_once_keys_have_one_effect, one_of_many_parallel_burns_gets_the_ticket, one_task_gets_a_contended_name,
        one_room_gets_a_contended_name, replicas_that_install_one_key_agree_on_it,
        one_of_many_edits_of_a_version_wins, one_of_many_renames_gets_the_name,
        triggers_under_a_policy_admit_no_more_than_it_says, replicas_fire_every_occurrence_once,
    }
    run_races {
        leasers_share_all_runs_without_overlap, permits_are_never_exceeded_and_nothing_is_stuck,
        concurrent_finish_and_recovery_have_one_winner, recovery_never_touches_a_live_lease,
        parallel_reports_on_one_lease_end_it_once, cancel_and_retry_end_in_cancelled_and_free_the_hold,
        cancel_and_success_agree_on_one_ending, cancel_and_lease_agree_on_who_started,
    }
    room_races {
        publishers_leave_no_holes_and_the_feed_skips_nothing,
        an_idle_transaction_stalls_neither_publishers_nor_the_feed, first_events_of_a_user_share_one_room,
        equal_message_ids_are_appended_once, rooms_in_opposite_order_do_not_block_each_other_for_ever,
    }
    account_races {
        one_user_gets_a_contended_name, one_of_many_edits_of_a_user_wins, a_rehash_never_undoes_a_new_password,
        equal_refreshes_keep_one_chain, of_many_successors_the_last_one_lives,
        reuse_ends_a_session_once_whoever_refreshes_it, a_session_that_was_ended_is_refreshed_no_more,
        a_new_password_and_refreshes_agree_on_who_is_left, nothing_outlives_the_end_of_its_user,
    }
}
