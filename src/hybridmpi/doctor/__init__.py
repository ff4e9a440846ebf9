"""What `hybridmpi doctor` looks at: one file for each family of probes; `examination` runs them, `supervision` survives
them, `report` shows what they found."""
