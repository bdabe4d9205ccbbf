#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_digest(const Options& options) {
  const CheckpointDigest found = digest(options.input, options.from, Session(options).run());
  const std::string text = to_string(found.digest);
  if (options.json)
    print_out(JsonWriter()
                  .begin_object()
                  .field("digest", text)
                  .field("tensors", found.digest.tensors)
                  .field("bytes", found.digest.bytes)
                  .end_object()
                  .text() +
              "\n");
  else
    print_out(text + "\n");
  if (found.contradicts_record())
    fail(ErrorCode::RecordContradicts, {options.input, {}},
         "{}: the record says {}: the tensors have changed since it was written", options.input, found.recorded);
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
