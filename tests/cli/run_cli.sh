#!/usr/bin/env bash
# Tests of the program as a program: statuses, streams, files left behind, signals, limits.
# usage: run_cli.sh PROGRAM [SET|GROUP...]
set -u
export LC_ALL=C
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PROGRAM=$(realpath "${1:?usage: run_cli.sh PROGRAM [SET|GROUP...]}") || exit 2
shift
# The same program, made to stand still in the middle. Built beside it.
HELD_PROGRAM=$(dirname "$PROGRAM")/tests/glu-ckpt-held
TESTDATA=${GLU_CKPT_TESTDATA:-$(realpath "$HERE/../../testdata")}
GALLERIES=${GLU_CKPT_GALLERIES:-$(dirname "$PROGRAM")/tests/galleries}
WORK=$(mktemp -d)
trap 'umount "$WORK/xfs" 2>/dev/null; chmod -R u+w "$WORK" 2>/dev/null; rm -rf "$WORK"' EXIT
unset NO_COLOR

# Under AddressSanitizer memory and address space say nothing about the program.
SANITIZED=0
if [[ -n ${GLU_CKPT_SANITIZED:-} ]] || LC_ALL=C grep -aqF __asan_init "$PROGRAM"; then SANITIZED=1; fi

for part in lib diff first_hours strangers what_is_it pages report terminal gallery streams help json_fields devices convert whole_models parts quantized quantized_turned encoded every_format files side_files forward verify_forward float_codes faults consume part_runs resume memory reflink check; do
  # shellcheck source=/dev/null
  source "$HERE/$part.sh"
done

# The groups by what they are about: a set's name stands for its groups, and without a name all of them run.
declare -A SETS=(
  [commands]="parts streams closed_streams help_and_usage help_texts colours manual_page completions json_output json_fields convert_forms sharding determinism optimizer optimizer_orders
    stamping check_record check_manifest checkpoint_forms overwriting foreign_outputs special_sources differing diff_planted diff_computed_norm diff_padding diff_text diff_unknown_order report_figures report_head report_hostile_names report_options terminal bind_mounts files_in_sources progress_json plan_refuses"
  [first_hours]="first_hours_tensors first_hours_foreign_order first_hours_missing_answers first_hours_stamp first_hours_paths
    first_hours_layouts first_hours_digest first_hours_rules first_hours_third first_hours_wrong_turns first_hours_batch stranger_help stranger_inspect stranger_adapters stranger_outputs stranger_sentences stranger_obstacles stranger_numbers stranger_wrong_turns stranger_sees stranger_changes stranger_pairs what_is_it model_size pages argument_lines ci_workflow"
  [formats]="gallery formats torch_files tiny every_format legacy_ranks objects_travel mxfp8_converts mxfp8_refusals
    mxfp8_differs mxfp8_beyond_bf16 flat_copies directory_of_a_run config_files whole_models_incomplete
    whole_models_without_mtp whole_models_mixed_forms whole_models_contradicted whole_models_refused loads_in_forms loads_in_unmapped dangling_links hidden_files metadata_entries
    whole_models_back_refused quantized_decodes quantized_decoders quantized_forward quantized_unequal_scales quantized_moves quantized_encodes quantized_modelopt_blocks
    quantized_finer_blocks quantized_reordered_columns quantized_scale_words quantized_turned quantized_shared_blocks quantized_groups
    quantized_named_config quantized_refusals nan_codes"
  [forward]="devices bench_convert forward forward_refusals verify_forward verify_subset forward_families forward_tiny"
  [limits]="memory_limit small_values peak_memory_alone permissions no_room file_size_limit peak_memory full_size_plans reflink"
  [faults]="kills signals source_changes unreadable_source resume_mismatch resume_complete resume_cannot_begin two_at_once consume_refusals consume_turned consume_rehearsal consume_twice consume_half consume_moved consume_kills part_refusals part_twice part_examples part_kills"
)
for name in "${@:-${!SETS[@]}}"; do
  for group in ${SETS[$name]:-$name}; do
    previous=
    "$group"
  done
done
printf '%d passed, %d failed\n' "$PASSED" "$FAILED"
((FAILED == 0))
