#include "layout/part_numbers.hpp"

#include "core/fail.hpp"
#include "layout/key_pattern.hpp"

namespace glu_ckpt {

std::string moved_numbers(std::string_view key, i64 experts, i64 layers) {
  KeySkeleton skeleton = skeletonize(key);
  const std::vector<const KeyPattern*> patterns = match_patterns(skeleton);
  if (patterns.empty() || patterns.front()->naming->counts_in_process) return std::string(key);
  const KeyPattern& pattern = *patterns.front();
  const auto move = [&](std::size_t from_last, i64 by, std::string_view what) {
    i64& number = skeleton.numbers[skeleton.numbers.size() - from_last];
    if (number + by < 0)
      fail(ErrorCode::Usage, {{}, std::string(key)}, "'{}' is of {} {}, but the first {} of this part is {}", key, what,
           number, what, -by);
    number += by;
  };
  if (pattern.has_expert) move(1, experts, "expert");
  if (!pattern.stacked_layers && pattern.stack->stack == "decoder") move(pattern.has_expert ? 2 : 1, layers, "layer");
  return print_key(skeleton);
}

}  // namespace glu_ckpt
