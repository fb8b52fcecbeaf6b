// Internal to src/kernels: how one source becomes a variant per instruction set.
//
// FIVEFOLD_CLONES goes on a free function (a template is fine) that works on a range of rows or elements; the dynamic
// linker picks the widest variant that the processor runs. Lambdas and the bodies of parallel regions are not cloned:
// the parallel region calls the cloned function once a block. What a cloned function is to contain must be
// FIVEFOLD_INLINE, or it stays at the baseline. Sanitizers run before the dynamic linker's choice is safe, so their
// builds define FIVEFOLD_KERNELS_ONE_VARIANT.
#pragma once

#ifdef FIVEFOLD_KERNELS_ONE_VARIANT
#define FIVEFOLD_CLONES
#else
#define FIVEFOLD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

#define FIVEFOLD_INLINE [[gnu::always_inline]] inline
