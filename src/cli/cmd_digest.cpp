#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt::cli {

int cmd_digest(const Options& options) {
  const Opened opened = open_model(options.input, options.from);
  require_known_glu(opened, "--from-glu");
  watch_signals();
  const auto backend = open_backend(options, 0);
  backend->ready();
  check_contents(options, *opened.source, "checking checksums");
  check_twin_orders(options, opened, options.from);
  Digest digest;
  {
    report::Progress progress(progress_style(options), "digest", tensor_bytes(opened.source->inventory()));
    digest = compute_digest(opened.model(), *backend, execute_options(options, progress));
  }
  const std::string text = to_string(digest);
  if (options.json)
    print_out(JsonWriter()
                  .begin_object()
                  .field("digest", text)
                  .field("tensors", digest.tensors)
                  .field("bytes", digest.bytes)
                  .end_object()
                  .text() +
              "\n");
  else
    print_out(text + "\n");
  const auto recorded = opened.source->record().find("digest");
  if (recorded != opened.source->record().end() && recorded->second != text)
    fail(ErrorCode::RecordContradicts, {options.input, {}},
         "{}: the record says {}: the tensors have changed since it was written", options.input, recorded->second);
  return 0;
}

}  // namespace glu_ckpt::cli
