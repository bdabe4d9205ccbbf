#include "forward/activation.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/mlp/mlp_layer.hpp"
#include "support/convert.hpp"
#include "support/float64_mlp.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;

TEST(Activation, IsTheFormulaForGatesOfEverySize) {
  for (int kind = 0; kind <= static_cast<int>(ActivationKind::SquaredRelu); ++kind) {
    const Activation activation{static_cast<ActivationKind>(kind), 1.25F, 3.5F, 0.25F};
    const support::PlainActivation plain{std::string(to_string(activation.kind)), 1.25, 3.5, 0.25};
    for (float a = -60; a < 60; a += 0.03125F)
      for (const float u : {-7.25F, -1.0F, 0.5F, 3.0F, 9.0F}) {
        const double expected = support::plain_activation(plain, a, u);
        // A few roundings to fp32; GeGLU's cubic inside the exponential makes an error of its argument relative there.
        const double slack = activation.kind == ActivationKind::GegluTanh ? 2e-6 * std::fabs(u) : 0;
        EXPECT_NEAR(activate(activation, a, u), expected, 5e-7 * std::fabs(expected) + slack + 1e-37)
            << plain.name << " of " << a << ", " << u;
      }
  }
}

TEST(Activation, InfinitiesAndZeros) {
  EXPECT_EQ(activate({ActivationKind::Swiglu}, HUGE_VALF, 2), HUGE_VALF);
  EXPECT_EQ(activate({ActivationKind::Glu}, HUGE_VALF, 2), 2);
  EXPECT_EQ(activate({ActivationKind::Glu}, -HUGE_VALF, 2), 0);
  EXPECT_EQ(activate({ActivationKind::GegluErf}, 40, 2), 80);
  EXPECT_EQ(activate({ActivationKind::Reglu}, -3, 2), 0);
  EXPECT_EQ(activate({ActivationKind::SituGlu, 4, 25, 0}, HUGE_VALF, -HUGE_VALF), -100);
  EXPECT_EQ(activate({ActivationKind::SituGlu, 4, 25, 0}, -HUGE_VALF, HUGE_VALF), 0);
  EXPECT_EQ(activate({ActivationKind::SituGlu, 4, 25, 0}, 1e-30F, 1e-30F), 0);
  // Where its arguments are small the formula is that of a s(a) u.
  EXPECT_FLOAT_EQ(activate({ActivationKind::SituGlu, 4, 25, 0}, 1e-12F, 2e-12F), 1e-24F);
  EXPECT_EQ(activate({ActivationKind::ClampedSwiglu, 1, 7, 0}, HUGE_VALF, -HUGE_VALF),
            activate({ActivationKind::Swiglu}, 7, -7));
}

/// The kernels compute three activations by one formula with the constants of scaled(). Equal to the last bit, so that
/// -0 is told from 0 and a NaN is a NaN.
TEST(Activation, ScaledConstantsMakeOneFormulaOfThree) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {0.0F, -0.0F, 1e-45F, -1e-45F, 0.5F,      -3.0F,      3.5F, -3.5F,
                          9.0F, -9.0F, 1e38F,  -1e38F,  HUGE_VALF, -HUGE_VALF, kNan};
  for (const ActivationKind kind :
       {ActivationKind::ClampedSwiglu, ActivationKind::QuickGeglu, ActivationKind::ClampedQuickGeglu})
    for (const float offset : {0.0F, -0.0F, 1.0F}) {
      const Activation activation{kind, 1.25F, 3.5F, offset};
      const Activation one = scaled(activation);
      for (const float a : values)
        for (const float u : values) {
          const float expected = activate(activation, a, u);
          const float value = activate({ActivationKind::ClampedQuickGeglu, one.alpha, one.limit, one.offset}, a, u);
          EXPECT_TRUE(std::isnan(expected) ? std::isnan(value)
                                           : std::bit_cast<u32>(expected) == std::bit_cast<u32>(value))
              << to_string(kind) << " of " << a << ", " << u << ": " << value << ", not " << expected;
        }
    }
}

TEST(ChooseActivation, NamesAreParsedBack) {
  for (int kind = 0; kind <= static_cast<int>(ActivationKind::SquaredRelu); ++kind)
    EXPECT_EQ(parse_activation(to_string(static_cast<ActivationKind>(kind))), static_cast<ActivationKind>(kind));
  expect_error(
      ErrorCode::Usage, [] { parse_activation("swigluu"); }, "clamped_quick_geglu");
}

TEST(ChooseActivation, FromConfig) {
  ModelHints hints;
  hints.hidden_act = "silu";
  EXPECT_EQ(choose_activation(hints, {}, true).kind, ActivationKind::Swiglu);
  hints.swiglu_limit = 10;
  EXPECT_EQ(choose_activation(hints, {}, true).kind, ActivationKind::ClampedSwiglu);
  EXPECT_EQ(choose_activation(hints, {}, true).limit, 10.0F);
  hints.model_type = "gpt_oss";
  EXPECT_EQ(choose_activation(hints, {}, true), (Activation{ActivationKind::ClampedQuickGeglu, 1.702F, 10, 1}));
  hints.swiglu_limit.reset();
  EXPECT_EQ(choose_activation(hints, {}, true), (Activation{ActivationKind::ClampedQuickGeglu, 1.702F, 7, 1}));
  hints.swiglu_alpha = 1.5;
  EXPECT_EQ(choose_activation(hints, {}, true).alpha, 1.5F);
  hints = {};
  hints.hidden_act = "gelu_pytorch_tanh";
  EXPECT_EQ(choose_activation(hints, {}, true).kind, ActivationKind::GegluTanh);
  hints.hidden_act = "gelu";
  EXPECT_EQ(choose_activation(hints, {}, true).kind, ActivationKind::GegluErf);
  hints.hidden_act = "relu2";
  EXPECT_EQ(choose_activation(hints, {}, false).kind, ActivationKind::SquaredRelu);
}

TEST(ChooseActivation, TheUserIsRight) {
  ModelHints hints;
  hints.hidden_act = "silu";
  hints.swiglu_limit = 3;
  const ActivationAnswers answers{ActivationKind::QuickGeglu, 1.5F, {}, 0.5F};
  EXPECT_EQ(choose_activation(hints, answers, true), (Activation{ActivationKind::QuickGeglu, 1.5F, 7, 0.5F}));
  EXPECT_EQ(choose_activation(hints, {{}, {}, 5.0F, {}}, true).limit, 5.0F);
  EXPECT_EQ(choose_activation(hints, {ActivationKind::ClampedQuickGeglu, {}, {}, {}}, true).offset, 1.0F);
  EXPECT_EQ(choose_activation(hints, {ActivationKind::SituGlu, {}, {}, {}}, true),
            (Activation{ActivationKind::SituGlu, 4, 25, 0}));
}

TEST(ChooseActivation, NothingIsGuessed) {
  const auto refused = [](const ModelHints& hints, const ActivationAnswers& answers, bool gated, ErrorCode code,
                          const std::string& word) {
    expect_error(
        code, [&] { choose_activation(hints, answers, gated); }, word);
  };
  ModelHints hints;
  refused(hints, {}, true, ErrorCode::UnknownActivation, "--activation");
  hints.hidden_act = "mish";
  refused(hints, {}, true, ErrorCode::UnknownActivation, "mish");
  hints.hidden_act = "gelu";
  hints.swiglu_limit = 4;
  refused(hints, {}, true, ErrorCode::UnknownActivation, "swiglu_limit 4");
  hints = {};
  hints.hidden_act = "silu";
  hints.swiglu_other = "swiglu_limits";
  refused(hints, {}, true, ErrorCode::UnknownActivation, "swiglu_limits");
  hints.swiglu_other.clear();
  hints.swiglu_alpha = 1.702;
  refused(hints, {}, true, ErrorCode::UnknownActivation, "known of gpt-oss alone");
  hints.swiglu_alpha.reset();
  refused(hints, {}, false, ErrorCode::UnknownActivation, "swiglu is for experts with a gate");
  hints.hidden_act = "relu2";
  refused(hints, {}, true, ErrorCode::UnknownActivation, "squared_relu is for experts without a gate");
  refused(hints, {ActivationKind::ClampedSwiglu, {}, {}, {}}, true, ErrorCode::UnknownActivation, "--limit");
  refused(hints, {ActivationKind::Swiglu, 1.0F, {}, {}}, true, ErrorCode::Usage, "swiglu has no --alpha");
  refused(hints, {ActivationKind::QuickGeglu, {}, 1.0F, {}}, true, ErrorCode::Usage, "quick_geglu has no --limit");
  refused(hints, {ActivationKind::SituGlu, {}, {}, 1.0F}, true, ErrorCode::Usage, "situ_glu has no --offset");
}

}  // namespace
}  // namespace glu_ckpt
