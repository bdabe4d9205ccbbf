#pragma once
/// The slug of the Error that `action` throws, or "none".

#include <functional>
#include <string>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

inline std::string slug_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(slug(error.code()));
  }
  return "none";
}

}  // namespace glu_ckpt
