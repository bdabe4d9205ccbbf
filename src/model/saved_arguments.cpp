#include "model/saved_arguments.hpp"

#include <fmt/format.h>

namespace glu_ckpt {

std::vector<std::string> unread_argument_texts(const Source& source, const ModelHints& hints) {
  std::vector<std::string> texts;
  for (const UnreadArg& arg : hints.trained_unread)
    texts.push_back(
        arg.name.empty()
            ? fmt::format("{}: the arguments that the trainer saved cannot be read, so they say nothing of the order "
                          "of gate and up: {}",
                          source.path().string(), arg.why)
            : fmt::format("{}: of the arguments that the trainer saved, '{}' {}; it is not read, and was not run. The "
                          "arguments that can be read count",
                          source.path().string(), arg.name, arg.why));
  return texts;
}

std::string why_arguments_do_not_do(const ModelHints& hints) {
  if (hints.trained_unread.empty()) return {};
  const UnreadArg& arg = hints.trained_unread.front();
  const std::string what =
      arg.name.empty() ? fmt::format("cannot be read: {}", arg.why)
                       : fmt::format("cannot all be read: '{}' {}, which may belong to the model", arg.name, arg.why);
  return fmt::format(
      "there is no config.json, and the arguments that the trainer saved {}; --from-config FILE names one", what);
}

}  // namespace glu_ckpt
