#include "on_host.hpp"
#include "{header}"
{prelude}
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem});
static Kernel::Params params;
alignas(1024) static char smem[{smem} + 1];
extern "C" bool launch(const void* packed, unsigned x, unsigned y, unsigned seed) {{
  std::memcpy(&params, packed, sizeof params);
  host::body = [] {{ Kernel::run(params, smem); }};
  std::mt19937 random(seed);
  for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) {{
      std::memset(smem, 0xa5, sizeof smem);
      if (!host::run_cta({threads}, random)) return false;
    }}
  return true;
}}
