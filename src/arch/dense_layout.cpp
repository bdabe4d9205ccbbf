#include "arch/dense_layout.hpp"

namespace glu_ckpt {
namespace {

i64 count_groups(const DenseRow& row, const Glu& glu, const Architecture& architecture) {
  switch (row.groups) {
    case Groups::One: return 1;
    case Groups::Heads: return architecture.heads;
    case Groups::KvHeads: return architecture.kv_heads;
    case Groups::DeltaKeyHeads: return architecture.delta_key_heads;
    case Groups::GluBlocks: {
      const i64 rows = extents_of(row.roles[0], TensorKind::Weight, architecture).rows;
      return glu.kind == Glu::Kind::Interleaved && rows > 0 ? rows / glu.block_rows : 1;
    }
  }
  return 1;
}

using R = DenseRole;
using D = Dim;

/// Vectors of which every element stands for itself, such as a norm, are one row.
constexpr auto kRoles = std::to_array<RoleShape>({
    {R::Embedding, "embedding", D::Vocab, D::Hidden},
    {R::Head, "head", D::Vocab, D::Hidden},
    {R::FinalNorm, "norm/final", D::One, D::Hidden},
    {R::AttentionNorm, "norm/attention", D::One, D::Hidden},
    {R::MlpNorm, "norm/mlp", D::One, D::Hidden},
    {R::Q, "attention/q", D::QRows, D::Hidden, true},
    {R::QGate, "attention/gate", D::QRows, D::Hidden, true},
    {R::K, "attention/k", D::KvRows, D::Hidden, true},
    {R::V, "attention/v", D::KvRows, D::Hidden, true},
    {R::AttentionOut, "attention/out", D::Hidden, D::AttentionOutCols},
    {R::QNorm, "norm/q", D::One, D::HeadDim},
    {R::KNorm, "norm/k", D::One, D::HeadDim},
    {R::WideQNorm, "norm/q", D::One, D::QRows},
    {R::WideKNorm, "norm/k", D::One, D::KvRows},
    {R::Sinks, "attention/sinks", D::One, D::Heads},
    {R::LatentQ, "attention/q", D::LatentQRows, D::Hidden, true},
    {R::QDown, "attention/q_down", D::QLora, D::Hidden},
    {R::QLatentNorm, "norm/q_latent", D::One, D::QLora},
    {R::QUp, "attention/q_up", D::LatentQRows, D::QLora, true},
    {R::KvDown, "attention/kv_down", D::KvDownRows, D::Hidden},
    {R::KvLatentNorm, "norm/kv_latent", D::One, D::KvLora},
    {R::KvUp, "attention/kv_up", D::KvUpRows, D::KvLora, true},
    {R::IndexerQ, "indexer/q", D::IndexerRows, D::QLora},
    {R::IndexerK, "indexer/k", D::IndexerDim, D::Hidden},
    {R::IndexerKNorm, "norm/indexer_k", D::One, D::IndexerDim},
    {R::IndexerKNormBias, "norm/indexer_k_bias", D::One, D::IndexerDim},
    {R::IndexerWeights, "indexer/weights", D::IndexerHeads, D::Hidden},
    {R::MlpGate, "mlp/gate", D::DenseWidth, D::Hidden},
    {R::MlpUp, "mlp/up", D::DenseWidth, D::Hidden},
    {R::MlpDown, "mlp/down", D::Hidden, D::DenseWidth},
    {R::Router, "router", D::Experts, D::Hidden},
    {R::CorrectionBias, "router/correction_bias", D::One, D::Experts},
    {R::SharedGate, "shared_expert/gate", D::One, D::Hidden},
    {R::DeltaQ, "delta/q", D::DeltaKeyRows, D::Hidden},
    {R::DeltaK, "delta/k", D::DeltaKeyRows, D::Hidden},
    {R::DeltaV, "delta/v", D::DeltaValueRows, D::Hidden},
    {R::DeltaZ, "delta/z", D::DeltaValueRows, D::Hidden},
    {R::DeltaBeta, "delta/beta", D::DeltaValueHeads, D::Hidden},
    {R::DeltaAlpha, "delta/alpha", D::DeltaValueHeads, D::Hidden},
    {R::ConvQ, "delta/conv_q", D::DeltaKeyRows, D::ConvKernel},
    {R::ConvK, "delta/conv_k", D::DeltaKeyRows, D::ConvKernel},
    {R::ConvV, "delta/conv_v", D::DeltaValueRows, D::ConvKernel},
    {R::DeltaDecay, "delta/a_log", D::One, D::DeltaValueHeads},
    {R::DeltaTimeBias, "delta/dt_bias", D::One, D::DeltaValueHeads},
    {R::DeltaNorm, "norm/delta_out", D::One, D::DeltaValueDim},
    {R::DeltaOut, "delta/out", D::Hidden, D::DeltaValueRows},
    {R::MambaZ, "mamba/z", D::MambaRows, D::Hidden},
    {R::MambaX, "mamba/x", D::MambaRows, D::Hidden},
    {R::MambaB, "mamba/b", D::MambaStateRows, D::Hidden},
    {R::MambaC, "mamba/c", D::MambaStateRows, D::Hidden},
    {R::MambaTime, "mamba/dt", D::MambaHeads, D::Hidden},
    {R::MambaConvX, "mamba/conv_x", D::MambaRows, D::MambaKernel},
    {R::MambaConvB, "mamba/conv_b", D::MambaStateRows, D::MambaKernel},
    {R::MambaConvC, "mamba/conv_c", D::MambaStateRows, D::MambaKernel},
    {R::MambaDecay, "mamba/a_log", D::One, D::MambaHeads},
    {R::MambaSkip, "mamba/d", D::One, D::MambaHeads},
    {R::MambaTimeBias, "mamba/dt_bias", D::One, D::MambaHeads},
    {R::MambaNorm, "norm/mamba_out", D::One, D::MambaRows},
    {R::MambaOut, "mamba/out", D::Hidden, D::MambaRows},
    {R::ExpertsDown, "experts/down", D::ExpertLatent, D::Hidden},
    {R::ExpertsUp, "experts/up", D::Hidden, D::ExpertLatent},
    {R::MtpEmbeddingNorm, "norm/mtp_embedding", D::One, D::Hidden},
    {R::MtpHiddenNorm, "norm/mtp_hidden", D::One, D::Hidden},
    {R::MtpProjection, "mtp/projection", D::Hidden, D::TwiceHidden},
    {R::MtpFinalNorm, "norm/mtp_final", D::One, D::Hidden},
});

constexpr bool in_enum_order() {
  for (std::size_t i = 0; i < kRoles.size(); ++i)
    if (static_cast<std::size_t>(kRoles[i].role) != i) return false;
  return kRoles.size() == static_cast<std::size_t>(R::MtpFinalNorm) + 1;
}
static_assert(in_enum_order());

}  // namespace

i64 dense_rows(const DenseRow& row, TensorKind kind, const Architecture& architecture) {
  i64 rows = 0;
  for (const DenseRole role : row.all_roles()) rows += extents_of(role, kind, architecture).rows;
  return rows;
}

std::vector<i64> dense_shape(const DenseRow& row, TensorKind kind, const Architecture& architecture) {
  const i64 rows = dense_rows(row, kind, architecture);
  if (kind == TensorKind::Bias) return {rows};
  const DenseRole role = row.roles[0];
  const i64 cols = extents_of(role, kind, architecture).cols;
  // nn.Linear(hidden, 1) is a matrix of one row, where other single rows are vectors.
  const bool is_matrix = shape_of(role).rows != Dim::One || role == DenseRole::SharedGate;
  if (row.form == Form::Conv) return {rows, 1, cols};
  if (is_matrix || row.form == Form::OneRow) return {rows, cols};
  return {cols};
}

Placement dense_placement(const DenseRow& row, std::size_t number, TensorKind kind, i64 element_bytes,
                          const Architecture& architecture, const Glu& glu) {
  const i64 groups = count_groups(row, glu, architecture);
  const auto rows_in_group = [&](DenseRole role) { return extents_of(role, kind, architecture).rows / groups; };
  Placement place;
  place.row_step = extents_of(row.roles[number], kind, architecture).cols * element_bytes;
  place.col_step = element_bytes;
  for (std::size_t before = 0; before < number; ++before)
    place.offset += rows_in_group(row.roles[before]) * place.row_step;
  if (row.paired) {
    place.paired = true;
    place.block_rows = head_rows_of(row.roles[number], architecture);
    place.block_step = place.block_rows * place.row_step;
    return place;
  }
  place.block_rows = rows_in_group(row.roles[number]);
  place.block_step = dense_rows(row, kind, architecture) / groups * place.row_step;
  return place;
}

const RoleShape& shape_of(DenseRole role) { return kRoles[static_cast<std::size_t>(role)]; }

std::string_view to_string(DenseRole role) { return shape_of(role).name; }

DenseExtents extents_of(DenseRole role, TensorKind kind, const Architecture& architecture) {
  const RoleShape& shape = shape_of(role);
  return {architecture.extent(shape.rows), kind == TensorKind::Bias ? 1 : architecture.extent(shape.cols)};
}

i64 head_rows_of(DenseRole role, const Architecture& architecture) {
  const RoleShape& shape = shape_of(role);
  if (!shape.by_heads) return 0;
  const i64 heads = shape.rows == Dim::KvRows ? architecture.kv_heads : architecture.heads;
  return heads > 0 ? architecture.extent(shape.rows) / heads : 0;
}

std::string layer_label(const DenseMatrix& matrix) {
  if (matrix.stack.empty()) return {};
  return (matrix.stack == "decoder" ? std::string() : std::string(matrix.stack) + ".") + std::to_string(matrix.layer);
}

}  // namespace glu_ckpt
