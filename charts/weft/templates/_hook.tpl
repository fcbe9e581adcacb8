{{/*
The pod of a hook: the operator's program, account and place, with another verb.
*/}}
{{- define "weft.hook.pod" -}}
serviceAccountName: {{ .account | default "weft-operator" }}
restartPolicy: Never
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .root.Values.operator.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.operator.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.operator.affinity }}
affinity: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .verb }}
    image: {{ include "weft.image" (dict "root" .root "who" "operator") }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args: [{{ .verb }}, --metrics-port={{ .root.Values.operator.ports.metrics }}{{ range .args }}, {{ . }}{{ end }}]
    env:
      - name: POD_NAMESPACE
        valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
      {{- with include "weft.operator.extraEnv" .root }}
      {{- . | nindent 6 }}
      {{- end }}
    resources: {{ toJson .root.Values.operator.resources }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
{{- end }}
